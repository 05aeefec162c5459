/* embedded ROUNDS LIBPYTHON SCRIPT ARGUMENT...: a program that opens an interpreter, runs the
 * script in it from a function of its own, ends the interpreter, and begins again. Last it closes
 * the interpreter and captures a stack by the script's first argument, where that is frames.so.
 *
 * embedded deleted LIBPYTHON FRAMES: a thread that has been in Python captures a stack by frames.so
 * once another one has deleted its state; glibc.malloc.perturb changes what that was. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static int (*run_string)(const char *text);

/* On the stack between main and Python, by name. */
__attribute__((noinline)) int run_script(const char *text)
{
    volatile int result = run_string(text);
    return result;
}

static void *of(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return found;
}

static bool is_mapped(const char *name)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, name) != NULL;
    if (maps)
        fclose(maps);
    return found;
}

static int open_and_close(const char *path, const char *frames)
{
    void *by = dlopen(frames, RTLD_NOW);
    if (!by)
        return 2;
    uint32_t (*capture)(void) = (uint32_t(*)(void))of(by, "frames_capture");
    ((void (*)(unsigned, unsigned, unsigned))of(by, "frames_start"))(0, 32, 16);
    enum { NONE, OPEN, BEGIN, END, CLOSE, STEPS };
    bool right = true;
    void *library = NULL;
    for (int step = 0; step < 2 * STEPS; step++) {
        switch (step % STEPS) {
        case OPEN:
            library = dlopen(path, RTLD_NOW);
            if (!library)
                return 77;
            break;
        case BEGIN:
            ((void (*)(void))of(library, "Py_Initialize"))();
            right &= capture() != 0; /* a new stack, which finds it */
            break;
        case END:
            ((int (*)(void))of(library, "Py_FinalizeEx"))();
            break;
        case CLOSE:
            ((int (*)(void *))of(by, "frames_close"))(library);
            if (is_mapped("libpython")) {
                printf("the interpreter stays loaded\n");
                return 77;
            }
            break;
        default:
            break;
        }
        right &= capture() != 0; /* a known one, which finds nothing out */
    }
    return right ? 0 : 1;
}

static struct {
    void *library;
    void *state;
    uint32_t (*capture)(void);
    pthread_barrier_t in_python, deleted;
} leaver;

static void *leave_python(void *unused)
{
    void *(*get)(void) = (void *(*)(void))of(leaver.library, "PyInterpreterState_Main");
    void *(*new)(void *) = (void *(*)(void *))of(leaver.library, "PyThreadState_New");
    leaver.state = new (get());
    ((void (*)(void *))of(leaver.library, "PyEval_RestoreThread"))(leaver.state);
    ((void *(*)(void))of(leaver.library, "PyEval_SaveThread"))();
    leaver.capture();
    pthread_barrier_wait(&leaver.in_python);
    pthread_barrier_wait(&leaver.deleted);
    return leaver.capture() == 0 ? leaver.library : unused;
}

static int capture_without_state(const char *path, const char *frames)
{
    void *by = dlopen(frames, RTLD_NOW), *failed = NULL;
    leaver.library = dlopen(path, RTLD_NOW);
    if (!by || !leaver.library)
        return 2;
    leaver.capture = (uint32_t(*)(void))of(by, "frames_capture");
    ((void (*)(unsigned, unsigned, unsigned))of(by, "frames_start"))(0, 32, 16);
    ((void (*)(void))of(leaver.library, "Py_Initialize"))();
    leaver.capture();
    void *own = ((void *(*)(void))of(leaver.library, "PyEval_SaveThread"))();
    pthread_t thread;
    pthread_barrier_init(&leaver.in_python, NULL, 2);
    pthread_barrier_init(&leaver.deleted, NULL, 2);
    if (pthread_create(&thread, NULL, leave_python, NULL) != 0)
        return 2;
    pthread_barrier_wait(&leaver.in_python);
    ((void (*)(void *))of(leaver.library, "PyEval_RestoreThread"))(own);
    ((void (*)(void *))of(leaver.library, "PyThreadState_Clear"))(leaver.state);
    ((void (*)(void *))of(leaver.library, "PyThreadState_Delete"))(leaver.state);
    pthread_barrier_wait(&leaver.deleted);
    pthread_join(thread, &failed);
    _exit(failed != NULL); /* the interpreter has lost track of the first thread's state as well */
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "deleted") == 0)
        return capture_without_state(argv[2], argv[3]);
    if (argc == 3)
        return open_and_close(argv[1], argv[2]);
    static char text[8192];
    void *library = argc > 3 ? dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library) {
        printf("no interpreter can be opened here: %s\n", dlerror());
        return 77;
    }
    void (*initialize)(void) = (void (*)(void))of(library, "Py_Initialize");
    int (*finalize)(void) = (int (*)(void))of(library, "Py_FinalizeEx");
    run_string = (int (*)(const char *))of(library, "PyRun_SimpleString");
    int used = snprintf(text, sizeof text, "import sys\nsys.argv = ['%s'", argv[3]);
    for (int i = 4; i < argc; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, ", '%s'", argv[i]);
    snprintf(text + used, sizeof text - (size_t)used,
             "]\nexec(compile(open('%s').read(), '%s', 'exec'))\n", argv[3], argv[3]);
    for (int round = 0; round < atoi(argv[1]); round++) {
        initialize();
        if (run_script(text) != 0)
            return 1;
        finalize();
    }
    return 0;
}
