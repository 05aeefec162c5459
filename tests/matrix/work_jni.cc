/* What Work.java calls. An unexpected code ends the program: the test is about CUDA, not Java. */
#include <cuda_runtime_api.h>
#include <jni.h>
#include "tests/preload/check.h"

extern "C" JNIEXPORT jlong JNICALL Java_Work_allocate(JNIEnv *, jclass, jlong bytes)
{
    void *memory;
    OK(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    return reinterpret_cast<jlong>(memory);
}

extern "C" JNIEXPORT void JNICALL Java_Work_release(JNIEnv *, jclass, jlong memory)
{
    OK(cudaFree(reinterpret_cast<void *>(memory)));
}

static void copy(JNIEnv *env, jbyteArray data, jlong memory, bool in)
{
    jbyte *bytes = env->GetByteArrayElements(data, nullptr);
    void *device = reinterpret_cast<void *>(memory);
    size_t size = static_cast<size_t>(env->GetArrayLength(data));
    void *host = bytes;
    CHECK(host);
    OK(cudaMemcpy(in ? device : host, in ? host : device, size,
                  in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost));
    env->ReleaseByteArrayElements(data, bytes, 0);
}

extern "C" JNIEXPORT void JNICALL Java_Work_copyIn(JNIEnv *env, jclass, jlong memory,
                                                   jbyteArray data)
{
    copy(env, data, memory, true);
}

extern "C" JNIEXPORT void JNICALL Java_Work_copyOut(JNIEnv *env, jclass, jbyteArray data,
                                                    jlong memory)
{
    copy(env, data, memory, false);
}
