/* The modules' events that shim/life/life.c starts, see modules.def. Those of contexts are declared
 * where they start, in shim/cuda/contexts.h. */
#ifndef CA_SHIM_LIFE_MODULES_H
#define CA_SHIM_LIFE_MODULES_H

void ca_modules_configure(void);
void ca_modules_fork_asleep(void);
void ca_modules_fork_child(void);

#endif
