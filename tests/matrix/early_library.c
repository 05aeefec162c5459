/* A library that a program is linked with, at work in its own constructor. */
#include "tests/matrix/work.h"

__attribute__((visibility("default"))) long long matrix_work(void);
__attribute__((visibility("default"))) long long early_sum;

long long matrix_work(void)
{
    return work();
}

__attribute__((constructor)) static void in_constructor(void)
{
    early_sum = work();
}
