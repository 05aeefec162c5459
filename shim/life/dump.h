/* Leak reports while the program runs: of what is live now. */
#ifndef CA_SHIM_LIFE_DUMP_H
#define CA_SHIM_LIFE_DUMP_H

/* Writes one, as ca_report_dump has it. Other threads go on. 0 or a negative errno: -EBUSY
 * where another thread's report takes longer than some seconds, or this one was interrupted in its
 * own. */
int ca_dump(const char *cause, const char *path);

#endif
