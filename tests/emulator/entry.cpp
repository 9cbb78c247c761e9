// One kernel file and the function that launches it. KERNEL_FILE, ENTRY and LAUNCH_BOUND come from
// the command line.
//
// The unnamed namespace gives every static array internal linkage, without which AddressSanitizer
// would leave those of templates unchecked.
#include "cuda_emulator.h"

namespace {
#include KERNEL_FILE

constexpr unsigned emulator_most_threads = LAUNCH_BOUND;
static_assert(emulator_most_threads <= 1024, "a block has at most 1024 threads");
}  // namespace

#ifndef SHARED_ALIGNMENT
#define SHARED_ALIGNMENT 128
#endif

#define EMULATOR_TEXT_OF(name) #name
#define EMULATOR_TEXT(name) EMULATOR_TEXT_OF(name)

// Ends of the block's static shared memory: the static variables of functions, which shared.ld puts
// together.
extern "C" __attribute__((visibility("hidden"))) unsigned char emulator_shared_begin[],
    emulator_shared_end[];

namespace emulator {

template <class... Parameters, size_t... Index>
void call(void (*kernel)(Parameters...), void** parameters, std::index_sequence<Index...>) {
    kernel(*static_cast<std::remove_reference_t<Parameters>*>(parameters[Index])...);
}

template <class... Parameters>
void call(void (*kernel)(Parameters...), void** parameters) {
    call(kernel, parameters, std::index_sequence_for<Parameters...>());
}

}  // namespace emulator

extern "C" int emulator_launch(const unsigned grid[3], const unsigned block[3],
                               unsigned long long shared_bytes, void*** parameters, unsigned cards,
                               unsigned cluster, int cooperative, int reverse) {
    emulator::Launch description{};
    description.name = EMULATOR_TEXT(ENTRY);
    description.body = [](void** values) { emulator::call(ENTRY, values); };
    description.parameters = parameters;
    description.cards = cards;
    description.grid = grid;
    description.block = block;
    description.dynamic_bytes = shared_bytes;
    description.shared_alignment = SHARED_ALIGNMENT;
    description.most_threads = emulator_most_threads;
    description.cluster = cluster;
    description.cooperative = cooperative != 0;
    description.static_begin = emulator_shared_begin;
    description.static_end = emulator_shared_end;
    description.reverse = reverse != 0;
#ifdef __SANITIZE_ADDRESS__
    description.sanitized = true;
#endif
    return emulator::launch(description);
}
