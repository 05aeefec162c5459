/* The option `journal`: when the file is made. */
#ifndef CA_SHIM_LIFE_KEEP_JOURNAL_H
#define CA_SHIM_LIFE_KEEP_JOURNAL_H

/* Keeps what the environment says of the path. Once, with the configuration. */
void ca_keep_journal_configure(void);

/* The process has its first context: a shell or a launcher that never has one leaves no file.
 * With no lock held; every caller returns when the file is there. */
void ca_keep_journal_start(void);

void ca_keep_journal_reset_after_fork(void);

#endif
