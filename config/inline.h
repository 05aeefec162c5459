/* For what a hit runs through: a call costs more there than what it saves in size. */
#ifndef CA_CONFIG_INLINE_H
#define CA_CONFIG_INLINE_H

#define CA_INLINE static inline __attribute__((always_inline))

#endif
