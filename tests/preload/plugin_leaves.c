/* A library whose destructor ends the process: at the end of a program that is after our report. */
#include <unistd.h>

__attribute__((destructor)) static void leave(void)
{
    _exit(8);
}
