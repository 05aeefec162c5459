/* The rule by which to unwind from an address, from the description of its function. For
 * eh_frame.c, which finds that. */
#ifndef CA_REGISTRY_STACK_CFI_H
#define CA_REGISTRY_STACK_CFI_H

#include "registry/stack/eh_frame.h"

/* Refused: of a form that is not known, or damaged. */
typedef enum { CA_CFI_NONE, CA_CFI_FOUND, CA_CFI_REFUSED } ca_cfi_answer_t;

/* By a description (FDE) and its common part (CIE), each of which can be read as far as it says
 * that it goes; the description has 4 bytes at least. None: the address is not its function's. */
ca_cfi_answer_t ca_cfi_rule(const uint8_t *description, const uint8_t *common, uintptr_t address,
                            ca_frame_rule_t *rule);

#endif
