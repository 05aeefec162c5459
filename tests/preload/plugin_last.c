/* A library whose destructor, after ours, leaves a text in the buffer of stdout. */
#include <stdio.h>

__attribute__((destructor)) static void say(void)
{
    printf("last");
}
