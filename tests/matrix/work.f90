! The work of pattern.h from Fortran.
program work
    use, intrinsic :: iso_c_binding
    implicit none

    interface
        integer(c_int) function cudaMalloc(memory, bytes) bind(c, name='cudaMalloc')
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), intent(out) :: memory
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function cudaFree(memory) bind(c, name='cudaFree')
            import :: c_int, c_ptr
            type(c_ptr), value :: memory
        end function
        integer(c_int) function cudaMemcpy(to, from, bytes, kind) bind(c, name='cudaMemcpy')
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from
            integer(c_size_t), value :: bytes
            integer(c_int), value :: kind
        end function
    end interface

    integer, parameter :: rounds = 200
    integer(c_int), parameter :: to_device = 1, to_host = 2
    integer(c_int8_t), target :: sent(5000), received(5000)
    integer(c_size_t) :: bytes, i
    integer(8) :: total
    integer :: r
    type(c_ptr) :: memory

    total = 0
    do r = 0, rounds - 1
        bytes = 1000 + 512 * mod(r, 8)
        do i = 1, bytes
            sent(i) = byte_of(mod(31_8 * r + 7 * (i - 1), 256_8))
        end do
        received = 0
        call ok(cudaMalloc(memory, bytes))
        call ok(cudaMemcpy(memory, c_loc(sent), bytes, to_device))
        call ok(cudaMemcpy(c_loc(received), memory, bytes, to_host))
        call ok(cudaFree(memory))
        do i = 1, bytes
            total = total + iand(int(received(i), 8), 255_8) * (mod(i - 1, 251_8) + 1)
        end do
    end do
    print '(i0)', total

contains

    integer(c_int8_t) function byte_of(value)
        integer(8), intent(in) :: value
        byte_of = int(merge(value - 256, value, value > 127), c_int8_t)
    end function

    subroutine ok(code)
        integer(c_int), intent(in) :: code
        if (code /= 0) error stop 'a call of CUDA failed'
    end subroutine
end program
