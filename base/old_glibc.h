/* For BUILD=portable, which has this in front of every file: one build for all distributions with
 * glibc 2.28 or later.
 *
 * What later versions moved from libdl and libpthread into libc got a new version name there, and
 * does what it did: it is asked for by the old one. stat and its kin became functions of their own.
 * From 2.38 on the headers turn what reads numbers into functions that know binary ones too: those
 * are called by the names of the others. scripts/check_glibc.sh refuses a library for which that is
 * not enough. */
#if !defined(CA_CONFIG_OLD_GLIBC_H) && !defined(__ASSEMBLER__)
#define CA_CONFIG_OLD_GLIBC_H

#include <sys/stat.h>

#if defined(__x86_64__)
#define CA_STAT_VERSION 1
#define CA_OLD_SYMBOL(name, old, version) __asm__(".symver " #name "," #old "@GLIBC_" version)
#elif defined(__aarch64__)
#define CA_STAT_VERSION 0
#define CA_OLD_SYMBOL(name, old, version) __asm__(".symver " #name "," #old "@GLIBC_2.17")
#else
#error "BUILD=portable knows x86_64 and aarch64"
#endif
#define CA_OLD_NAME(name, version) CA_OLD_SYMBOL(name, name, version)

CA_OLD_NAME(dladdr, "2.2.5");
CA_OLD_NAME(dladdr1, "2.3.3");
CA_OLD_NAME(dlerror, "2.2.5");
CA_OLD_NAME(dlopen, "2.2.5");
CA_OLD_NAME(dlvsym, "2.2.5");
CA_OLD_NAME(pthread_attr_getstack, "2.2.5");
CA_OLD_NAME(pthread_attr_setstacksize, "2.2.5");
CA_OLD_NAME(pthread_create, "2.2.5");
CA_OLD_NAME(pthread_getattr_np, "2.2.5");
CA_OLD_NAME(pthread_getspecific, "2.2.5");
CA_OLD_NAME(pthread_key_create, "2.2.5");
CA_OLD_NAME(pthread_once, "2.2.5");
CA_OLD_NAME(pthread_setname_np, "2.12");
CA_OLD_NAME(pthread_setspecific, "2.2.5");
CA_OLD_NAME(pthread_sigmask, "2.2.5");
CA_OLD_NAME(sem_init, "2.2.5");
CA_OLD_NAME(sem_post, "2.2.5");
CA_OLD_NAME(sem_trywait, "2.2.5");
CA_OLD_NAME(sem_wait, "2.2.5");

CA_OLD_SYMBOL(__isoc23_strtol, strtol, "2.2.5");
CA_OLD_SYMBOL(__isoc23_strtoll, strtoll, "2.2.5");
CA_OLD_SYMBOL(__isoc23_strtoul, strtoul, "2.2.5");
CA_OLD_SYMBOL(__isoc23_strtoull, strtoull, "2.2.5");

extern int __xstat(int version, const char *path, struct stat *found);
extern int __lxstat(int version, const char *path, struct stat *found);
extern int __fxstat(int version, int fd, struct stat *found);
#define stat(path, found) __xstat(CA_STAT_VERSION, path, found)
#define lstat(path, found) __lxstat(CA_STAT_VERSION, path, found)
#define fstat(fd, found) __fxstat(CA_STAT_VERSION, fd, found)

#endif
