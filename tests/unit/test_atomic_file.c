/* Files that appear whole, and never in another's place; files that are kept up to date. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/atomic_file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char directory[64], target[128];
static ca_atomic_file_t file;
static ca_kept_file_t kept;

/* File systems that know no renameat2 flags are made of one that does, and somebody may be quick.
 */
static int rename_error;
static bool come_before;

static void put_other(void)
{
    unlink(kept.path);
    int fd = open(kept.path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, "other", 5), 5);
    close(fd);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    static int (*real)(int, const char *, int, const char *, unsigned);
    if (!real)
        real =
            (int (*)(int, const char *, int, const char *, unsigned))dlsym(RTLD_NEXT, "renameat2");
    if (rename_error) {
        errno = rename_error;
        return -1;
    }
    if (come_before)
        put_other();
    come_before = false;
    return real(from_dir, from, to_dir, to, flags);
}

static int make_directory(void **state)
{
    (void)state;
    rename_error = 0;
    snprintf(directory, sizeof directory, "/tmp/cachealloc-test-XXXXXX");
    assert_non_null(mkdtemp(directory));
    snprintf(target, sizeof target, "%s/report", directory);
    memset(&kept, 0, sizeof kept);
    snprintf(kept.path, sizeof kept.path, "%s/kept", directory);
    return 0;
}

static int remove_directory(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

static size_t entries(void)
{
    size_t count = 0;
    DIR *open = opendir(directory);
    while (readdir(open))
        count++;
    closedir(open);
    return count - 2;
}

static void assert_holds(const char *name, const char *expected)
{
    char text[64] = "";
    int fd = open(name, O_RDONLY);
    assert_true(fd >= 0);
    assert_true(read(fd, text, sizeof text - 1) >= 0);
    close(fd);
    assert_string_equal(text, expected);
}

static void write_new(void)
{
    assert_int_equal(ca_atomic_file_begin(&file, target), 0);
    assert_int_equal(write(file.fd, "new", 3), 3);
}

static void a_file_has_its_name_when_it_is_whole(void **state)
{
    struct stat found;
    (void)state;
    write_new();
    assert_int_equal(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(entries(), 1);
    assert_int_equal(ca_atomic_file_end(&file), 0);
    assert_int_equal(ca_atomic_file_name(&file, target), 0);
    ca_atomic_file_discard(&file);
    assert_holds(target, "new");
    assert_int_equal(entries(), 1);
    assert_int_equal(stat(target, &found), 0);
    assert_int_equal(found.st_mode & 0777, 0600);
}

static void what_has_the_name_stays(void **state)
{
    static const int errors[] = {0, EINVAL, ENOSYS}; /* of renameat2 */
    char other[128];
    (void)state;
    snprintf(other, sizeof other, "%s/other", directory);
    for (size_t i = 0; i < COUNT(errors); i++)
        for (int link = 0; link < 2; link++) {
            rename_error = errors[i];
            unlink(target);
            if (link)
                assert_int_equal(symlink(other, target), 0);
            else
                close(open(target, O_WRONLY | O_CREAT, 0600));
            write_new();
            assert_int_equal(ca_atomic_file_end(&file), 0);
            assert_int_equal(ca_atomic_file_name(&file, target), -EEXIST);
            assert_int_equal(access(other, F_OK), -1);
            if (!link)
                assert_holds(target, "");
            assert_int_equal(ca_atomic_file_name(&file, other), 0);
            assert_holds(other, "new");
            unlink(other);
            assert_int_equal(entries(), 1);
        }
}

static void what_is_discarded_leaves_nothing(void **state)
{
    (void)state;
    write_new();
    ca_atomic_file_discard(&file);
    assert_int_equal(entries(), 0);
    rename_error = EIO;
    write_new();
    assert_int_equal(ca_atomic_file_end(&file), 0);
    assert_int_equal(ca_atomic_file_name(&file, target), -EIO);
    ca_atomic_file_discard(&file);
    assert_int_equal(entries(), 0);
}

static void what_cannot_be_begun_is_told(void **state)
{
    static char longest[PATH_MAX + 64];
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/no/report", directory);
    assert_int_equal(ca_atomic_file_begin(&file, path), -ENOENT);
    ca_atomic_file_discard(&file);
    memset(longest, 'a', sizeof longest - 1);
    longest[PATH_MAX - 10] = '/';
    assert_int_equal(ca_atomic_file_begin(&file, longest), -ENAMETOOLONG);
    ca_atomic_file_discard(&file);
    assert_int_equal(entries(), 0);
}

/* --- a file that is kept up to date ----------------------------------------------------------- */

static int put(const char *text)
{
    assert_int_equal(ca_kept_file_begin(&kept, 0644), 0);
    assert_int_equal(write(kept.next.fd, text, strlen(text)), strlen(text));
    assert_int_equal(ca_kept_file_end(&kept), 0);
    int error = ca_kept_file_put(&kept);
    ca_kept_file_discard(&kept);
    return error;
}

static void each_takes_the_place_of_the_last(void **state)
{
    static const int errors[] = {0, EINVAL, ENOSYS}; /* of renameat2 */
    struct stat found;
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        rename_error = errors[i];
        assert_int_equal(put("one"), 0);
        assert_int_equal(put("two"), 0);
        assert_holds(kept.path, "two");
        assert_int_equal(entries(), 1);
        assert_int_equal(stat(kept.path, &found), 0);
        assert_int_equal(found.st_mode & 0777, 0644);
        ca_kept_file_remove(&kept);
        assert_int_equal(entries(), 0);
    }
}

static void what_was_there_first_stays(void **state)
{
    (void)state;
    put_other();
    assert_int_equal(put("one"), -EEXIST);
    ca_kept_file_remove(&kept);
    assert_holds(kept.path, "other");
    assert_int_equal(entries(), 1);
}

/* The inode may be that of the one before. */
static void what_came_in_its_place_stays(void **state)
{
    static const int errors[] = {0, EINVAL};
    (void)state;
    for (size_t i = 0; i < COUNT(errors); i++) {
        rename_error = errors[i];
        unlink(kept.path);
        assert_int_equal(put("one"), 0);
        put_other();
        assert_int_equal(put("two"), -EEXIST);
        ca_kept_file_remove(&kept);
        assert_holds(kept.path, "other");
        assert_int_equal(entries(), 1);
    }
}

static void what_comes_at_the_last_moment_stays(void **state)
{
    (void)state;
    assert_int_equal(put("one"), 0);
    come_before = true;
    assert_int_equal(put("two"), -EEXIST);
    assert_holds(kept.path, "other");
    assert_int_equal(entries(), 1);
}

static void one_that_is_gone_comes_again(void **state)
{
    (void)state;
    assert_int_equal(put("one"), 0);
    unlink(kept.path);
    assert_int_equal(put("two"), 0);
    assert_holds(kept.path, "two");
    unlink(kept.path);
    ca_kept_file_remove(&kept);
}

static void one_that_was_never_begun_can_be_discarded(void **state)
{
    (void)state;
    int fd = dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0); /* what a descriptor of 0 would be */
    assert_int_equal(fd, 0);
    ca_kept_file_discard(&kept);
    ca_kept_file_remove(&kept);
    assert_true(fcntl(0, F_GETFD) >= 0);
    snprintf(kept.path, sizeof kept.path, "%s/no/kept", directory);
    assert_int_equal(ca_kept_file_begin(&kept, 0644), -ENOENT);
    ca_kept_file_discard(&kept);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)
    const struct CMUnitTest tests[] = {
        TEST(a_file_has_its_name_when_it_is_whole), TEST(what_has_the_name_stays),
        TEST(what_is_discarded_leaves_nothing),     TEST(what_cannot_be_begun_is_told),
        TEST(each_takes_the_place_of_the_last),     TEST(what_was_there_first_stays),
        TEST(what_came_in_its_place_stays),         TEST(what_comes_at_the_last_moment_stays),
        TEST(one_that_is_gone_comes_again),         TEST(one_that_was_never_begun_can_be_discarded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
