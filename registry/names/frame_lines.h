/* Frames as a report for people has them: a line for each function, and names that fit on it. */
#ifndef CA_REGISTRY_NAMES_FRAME_LINES_H
#define CA_REGISTRY_NAMES_FRAME_LINES_H

#include "base/out.h"
#include "base/text.h"

/* Appends the name of a function, safe to show. One of more than 80 bytes has `...` in the place of
 * long template arguments: "std::vector<...>::push_back". */
void ca_frame_add_function(ca_text_t *text, const char *function);

/* Writes lines that a newline separates, each behind `indent`. */
void ca_frame_write(ca_out_t *out, const char *indent, const char *lines);

#endif
