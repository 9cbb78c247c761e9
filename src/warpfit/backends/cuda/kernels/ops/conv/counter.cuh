// Counts through the elements of an array of three axes, a fixed step at a time, without divisions;
// and quick ones.
// A thread's own: it knows no memory.
#pragma once

// A place in an array of axes a, b and c, and the way to the place `step` elements further on.
struct Counter {
    int size_b, size_c;
    int a, b, c;
    int step_a, step_b, step_c;

    __device__ Counter(int index, int step, int size_b_, int size_c_)
        : size_b(size_b_ > 0 ? size_b_ : 1), size_c(size_c_ > 0 ? size_c_ : 1) {
        split(index, a, b, c);
        split(step, step_a, step_b, step_c);
    }

    __device__ void split(int index, int& in_a, int& in_b, int& in_c) const {
        const int rows = index / size_c;
        in_c = index - rows * size_c;
        in_a = rows / size_b;
        in_b = rows - in_a * size_b;
    }

    __device__ void advance() { add(step_a, step_b, step_c); }
    __device__ void next() { add(0, 0, 1); }

    __device__ void add(int of_a, int of_b, int of_c) {
        c += of_c;
        b += of_b;
        a += of_a;
        if (c >= size_c) {
            c -= size_c;
            ++b;
        }
        if (b >= size_b) {
            b -= size_b;
            ++a;
        }
    }
};

// Divides numbers from 0 to 2^20 by one that is given later than the kernel is compiled.
struct Divisor {
    int number;
    float inverse;

    __device__ explicit Divisor(int of) : number(of), inverse(1.0f / of) {}

    // Half a unit keeps the quotient's error away from whole numbers.
    __device__ int quotient(int of) const { return static_cast<int>((of + 0.5f) * inverse); }
    __device__ int rest(int of) const { return of - quotient(of) * number; }
};
