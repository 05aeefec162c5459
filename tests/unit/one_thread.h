/* ONE_THREAD() begins a test that takes long and has one thread: where races are looked for there
 * is none in it, and all other builds run it. Include it behind cmocka.h. */
#ifndef ONE_THREAD_H
#define ONE_THREAD_H

#ifdef __SANITIZE_THREAD__
#define ONE_THREAD() skip()
#else
#define ONE_THREAD() ((void)0)
#endif

#endif
