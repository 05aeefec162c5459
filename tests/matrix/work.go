// The work of pattern.h from Go.
package main

/*
#include <cuda_runtime_api.h>
#include <stdlib.h>
*/
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"unsafe"
)

func ok(code C.cudaError_t) {
	if code != 0 {
		fmt.Fprintln(os.Stderr, "a call of CUDA answered", code)
		os.Exit(1)
	}
}

func main() {
	sum := int64(0)
	for round := 0; round < 200; round++ {
		in := make([]byte, 1000+512*(round%8))
		out := make([]byte, len(in))
		for i := range in {
			in[i] = byte(31*round + 7*i)
		}
		var memory unsafe.Pointer
		size := C.size_t(len(in))
		ok(C.cudaMalloc(&memory, size))
		ok(C.cudaMemcpy(memory, unsafe.Pointer(&in[0]), size, C.cudaMemcpyHostToDevice))
		ok(C.cudaMemcpy(unsafe.Pointer(&out[0]), memory, size, C.cudaMemcpyDeviceToHost))
		ok(C.cudaFree(memory))
		if !bytes.Equal(in, out) {
			ok(1)
		}
		for i, b := range out {
			sum += int64(b) * int64(i%251+1)
		}
	}
	fmt.Println(sum)
	// Go itself ends a process without C's exit, and with that without anybody's report or counts.
	C.exit(0)
}
