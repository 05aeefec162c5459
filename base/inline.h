/* For what a hit runs through: a call costs more there than what it saves in size. */
#ifndef CA_BASE_INLINE_H
#define CA_BASE_INLINE_H

#define CA_INLINE static inline __attribute__((always_inline))

/* For an address that is used several times: the compiler must not work it out anew at each. */
#define CA_KEEP_IN_REGISTER(pointer) __asm__("" : "+r"(pointer))

#endif
