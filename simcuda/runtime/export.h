/* The visibility of the runtime's functions. In the real static archive they are hidden symbols
 * (readelf -s libcudart_static.a), so that a program linked with it exports none of them. */
#ifndef SIMCUDA_RUNTIME_EXPORT_H
#define SIMCUDA_RUNTIME_EXPORT_H

#ifdef RT_STATIC
#define RT_EXPORT
#else
#define RT_EXPORT __attribute__((visibility("default")))
#endif

#endif
