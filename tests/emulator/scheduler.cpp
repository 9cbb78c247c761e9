// Runs a grid of emulated threads: fibers on one thread of the CPU, block after block.
//
// A thread runs until it waits at a barrier or a warp collective, or returns; a warp runs until none of its
// threads can go on, so that it is as far ahead of the others as barriers allow. The order of warps, and of
// threads in a warp, is from first to last, or with `reverse` from last to first. When all wait and none can go
// on, the launch fails with a message that says who waits where.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fibers.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// There only where AddressSanitizer is; it must know on which stack the program runs.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                           size_t* size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}

namespace emulator {

Thread* current = nullptr;
unsigned char* dynamic_shared = nullptr;

namespace {

constexpr unsigned MOST_THREADS = 1024;
constexpr unsigned MOST_STATIC_BYTES = 48 * 1024;
constexpr unsigned MOST_SHARED_BYTES = 227 * 1024;
constexpr size_t STACK_BYTES = 256 * 1024;
constexpr size_t GUARD_BYTES = 4096;
constexpr size_t FENCE_BYTES = 256;
constexpr unsigned char POISON = 0xff, FENCE = 0xa5;

// ------------------------------------------------------------------------------------- context switches

#if defined(__x86_64__)

using Context = void*;  // the stack pointer, above the registers that a call must keep

extern "C" void emulator_switch(Context* from, Context to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, .-emulator_switch
)");

// Stack tops differ modulo the page size: at equal offsets all stacks would share a few lines of the cache.
void prepare(Context& context, unsigned char* stack, unsigned number, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(stack + STACK_BYTES - 64 - 128 * (number % 32));
    *--top = nullptr;  // the return address of entry, which never returns
    *--top = reinterpret_cast<void*>(entry);
    for (int kept = 0; kept < 6; ++kept) *--top = nullptr;
    context = top;
}

void switch_context(Context& from, Context& to) { emulator_switch(&from, to); }

#else

using Context = ucontext_t;

void prepare(Context& context, unsigned char* stack, unsigned, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

#endif

// --------------------------------------------------------------------------------- state of the launch

enum State : unsigned char { READY, AT_BARRIER, AT_COLLECTIVE, LEFT };

struct Fiber {
    Context context;
    unsigned char* stack = nullptr;
    void* fake_stack = nullptr;
    uint3 index{};
    Thread thread;
    const char* waits_at = nullptr;
    Site site{};
    Request* request = nullptr;
};

std::mutex launch_mutex;
std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch
State state[MOST_THREADS];
unsigned fibers_prepared = 0;
Context scheduler_context;
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;

const Launch* launched = nullptr;
unsigned num_threads = 0, running = 0, num_left = 0;
unsigned barrier_arrived = 0, barrier_predicates = 0;
unsigned long long barriers_passed = 0;
int barrier_result = 0;
bool barrier_is_one = true;
Site barrier_site{};
bool failed = false;
char error[4096] = "";

// ---------------------------------------------------------------------------------------------- errors

std::string ranges(const std::vector<unsigned>& numbers) {
    std::string text;
    for (size_t i = 0, parts = 0; i < numbers.size(); ++parts) {
        if (parts == 6) return text + ", ...";
        size_t last = i;
        while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
        text += (parts ? ", " : "") + std::to_string(numbers[i]);
        if (last > i) text += "-" + std::to_string(numbers[last]);
        i = last + 1;
    }
    return text;
}

std::string threads_text(const std::vector<unsigned>& numbers) {
    return (numbers.size() == 1 ? "thread " : "threads ") + ranges(numbers);
}

std::string file_name(const char* path) {
    const char* slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// Who waits where, such as "threads 0-31 wait at __syncthreads (softmax.cu:12); thread 32 has left the
// kernel".
std::string waiting_text() {
    std::map<std::string, std::vector<unsigned>> places;
    std::vector<unsigned> left;
    for (unsigned t = 0; t < num_threads; ++t) {
        const Fiber& fiber = *fibers[t];
        if (state[t] == LEFT) {
            left.push_back(t);
        } else if (state[t] != READY) {
            places[std::string(fiber.waits_at) + " (" + file_name(fiber.site.file) + ":" +
                   std::to_string(fiber.site.line) + ")"]
                .push_back(t);
        }
    }
    std::string text;
    for (const auto& place : places)
        text += (text.empty() ? "" : "; ") + threads_text(place.second) +
                (place.second.size() == 1 ? " waits at " : " wait at ") + place.first;
    if (!left.empty())
        text += "; " + threads_text(left) + (left.size() == 1 ? " has" : " have") + " left the kernel";
    return text;
}

void record(const char* format, ...) __attribute__((format(printf, 1, 2)));
void record(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error, sizeof error, format, arguments);
    va_end(arguments);
    failed = true;
}

std::string block_text() {
    return std::string("kernel ") + launched->name + ", block (" + std::to_string(blockIdx.x) + ", " +
           std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
}

void record_deadlock() { record("%s: deadlock: %s", block_text().c_str(), waiting_text().c_str()); }

// ---------------------------------------------------------------------------------------------- fibers

void enter_fiber() {
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(fibers[running]->fake_stack, &scheduler_stack,
                                        &scheduler_stack_bytes);
}

void back_to_scheduler() {
    Fiber& fiber = *fibers[running];
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack, scheduler_stack_bytes);
    switch_context(fiber.context, scheduler_context);
    enter_fiber();
}

// A fiber runs one thread of each block, then waits for the next block.
void run_fiber() {
    enter_fiber();
    while (true) {
        launched->body(launched->parameters);
        state[running] = LEFT;
        ++num_left;
        back_to_scheduler();
    }
}

void resume(unsigned number) {
    Fiber& fiber = *fibers[number];
    running = number;
    current = &fiber.thread;
    threadIdx = fiber.index;
    fiber.thread.atomics_since_wait = 0;
    if (__sanitizer_start_switch_fiber)
        __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack, STACK_BYTES);
    switch_context(scheduler_context, fiber.context);
    if (__sanitizer_finish_switch_fiber)
        __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
    current = nullptr;
}

// A page below the stack takes the overflow.
unsigned char* new_stack() {
    void* memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    mprotect(memory, GUARD_BYTES, PROT_NONE);
    return static_cast<unsigned char*>(memory) + GUARD_BYTES;
}

void prepare_fibers() {
    for (; fibers_prepared < num_threads; ++fibers_prepared) {
        if (fibers_prepared == fibers.size()) {
            fibers.push_back(std::make_unique<Fiber>());
            fibers.back()->stack = new_stack();
        }
        Fiber& fiber = *fibers[fibers_prepared];
        if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber.stack, STACK_BYTES);
        fiber.fake_stack = nullptr;
        prepare(fiber.context, fiber.stack, fibers_prepared, run_fiber);
    }
}

void place_threads() {
    for (unsigned t = 0; t < num_threads; ++t)
        fibers[t]->index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
}

// ---------------------------------------------------------------------------------------- shared memory

// Not memset: AddressSanitizer would take the gaps between the arrays for an error.
void fill(unsigned char* begin, unsigned char* end, unsigned char value) {
#if defined(__x86_64__)
    size_t count = end - begin;
    asm volatile("rep stosb" : "+D"(begin), "+c"(count) : "a"(value) : "memory");
#else
    for (volatile unsigned char* byte = begin; byte < end; ++byte) *byte = value;
#endif
}

// The block's dynamic shared memory: with AddressSanitizer exactly its bytes, without with a fence after
// them.
class DynamicShared {
  public:
    explicit DynamicShared(const Launch& launch)
        : bytes_(launch.dynamic_bytes), fence_(launch.sanitized ? 0 : FENCE_BYTES) {
        void* memory = nullptr;
        if (posix_memalign(&memory, 128, bytes_ + fence_) != 0) std::abort();
        dynamic_shared = static_cast<unsigned char*>(memory);
    }
    ~DynamicShared() {
        std::free(dynamic_shared);
        dynamic_shared = nullptr;
    }
    void poison() {
        std::memset(dynamic_shared, POISON, bytes_);
        std::memset(dynamic_shared + bytes_, FENCE, fence_);
    }
    bool fence_holds() const {
        for (size_t i = 0; i < fence_; ++i)
            if (dynamic_shared[bytes_ + i] != FENCE) return false;
        return true;
    }

  private:
    size_t bytes_, fence_;
};

// ---------------------------------------------------------------------------------------------- crashes

constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

void on_crash(int signal_number, siginfo_t* info, void*) {
    if (!current) {  // not in device code: let it happen again, unhandled
        signal(signal_number, SIG_DFL);
        return;
    }
    const auto* address = static_cast<const unsigned char*>(info->si_addr);
    const unsigned char* stack = fibers[running]->stack;
    if (signal_number == SIGSEGV && address >= stack - GUARD_BYTES && address < stack)
        fail("stack overflow: a thread's local variables take more than %zu bytes", STACK_BYTES);
    if (signal_number == SIGFPE) fail("an integer was divided by zero, or the least one by -1");
    fail("%s at address %p: outside of memory, or a vector access that is not aligned",
         strsignal(signal_number), info->si_addr);
}

// While it lives, a crash of device code is an error of the launch. AddressSanitizer reports crashes better
// itself.
class CrashGuard {
  public:
    explicit CrashGuard(bool active) : active_(active) {
        if (!active_) return;
        static unsigned char handler_stack[64 * 1024];
        stack_t stack{};
        stack.ss_sp = handler_stack;
        stack.ss_size = sizeof handler_stack;
        sigaltstack(&stack, &old_stack_);
        struct sigaction action{};
        action.sa_sigaction = on_crash;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler does not return
        for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &action, &old_actions_[i]);
    }
    ~CrashGuard() {
        if (!active_) return;
        for (int i = 0; i < 4; ++i) sigaction(SIGNALS[i], &old_actions_[i], nullptr);
        sigaltstack(&old_stack_, nullptr);
    }

  private:
    bool active_;
    stack_t old_stack_{};
    struct sigaction old_actions_[4];
};

// ---------------------------------------------------------------------------------------------- blocks

void start_block() {
    num_left = barrier_arrived = barrier_predicates = 0;
    for (unsigned t = 0; t < num_threads; ++t) {
        state[t] = READY;
        fibers[t]->thread.copies.clear();
        fibers[t]->thread.groups_committed = 0;
    }
}

// Runs one thread after the other, as far as the warp comes before the next barrier of the block falls. Whether
// any of them could run.
bool run_warp(unsigned warp) {
    const unsigned first = warp * warpSize, end = std::min(first + warpSize, num_threads);
    const unsigned long long barriers_before = barriers_passed;
    bool any_ran = false;
    for (bool ran = true; ran && barriers_passed == barriers_before;) {
        ran = false;
        for (unsigned i = first; i < end; ++i) {
            const unsigned t = launched->reverse ? end - 1 - (i - first) : i;
            if (state[t] != READY) continue;
            ran = any_ran = true;
            resume(t);
            if (failed) return true;
        }
    }
    return any_ran;
}

void run_block() {
    start_block();
    const unsigned num_warps = (num_threads + warpSize - 1) / warpSize;
    while (num_left < num_threads) {
        bool any_ran = false;
        for (unsigned i = 0; i < num_warps && !failed; ++i) {
            any_ran |= run_warp(launched->reverse ? num_warps - 1 - i : i);
        }
        if (failed) return;
        if (!any_ran) return record_deadlock();
    }
}

void run_grid(DynamicShared& shared) {
    const unsigned long long blocks = 1ull * gridDim.x * gridDim.y * gridDim.z;
    for (unsigned long long i = 0; i < blocks && !failed; ++i) {
        const unsigned long long b = launched->reverse ? blocks - 1 - i : i;
        blockIdx = {static_cast<unsigned>(b % gridDim.x), static_cast<unsigned>(b / gridDim.x % gridDim.y),
                    static_cast<unsigned>(b / gridDim.x / gridDim.y)};
        fill(launched->static_begin, launched->static_end, POISON);
        shared.poison();
        run_block();
        if (!failed && !shared.fence_holds())
            record("%s: wrote past the end of its %llu bytes of dynamic shared memory", block_text().c_str(),
                   launched->dynamic_bytes);
    }
}

// Whether the launch keeps the limits of sm_90 and of the kernel. AddressSanitizer enlarges static arrays:
// their size is not checked then.
bool check_limits(const Launch& launch) {
    const auto *grid = launch.grid, *block = launch.block;
    const unsigned long long static_bytes = launch.sanitized ? 0 : launch.static_end - launch.static_begin;
    const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
    if (threads < 1 || threads > launch.most_threads || block[2] > 64) {
        record("kernel %s: expected a block of 1 to %u threads, at most 64 of them in z, got (%u, %u, %u)",
               launch.name, launch.most_threads, block[0], block[1], block[2]);
    } else if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > 0x7fffffffu || grid[1] > 65535 ||
               grid[2] > 65535) {
        record("kernel %s: expected a grid from (1, 1, 1) to (2147483647, 65535, 65535), got (%u, %u, %u)",
               launch.name, grid[0], grid[1], grid[2]);
    } else if (static_bytes > MOST_STATIC_BYTES) {
        record("kernel %s: expected at most %u bytes of static shared memory, got %llu", launch.name,
               MOST_STATIC_BYTES, static_bytes);
    } else if (static_bytes + launch.dynamic_bytes > MOST_SHARED_BYTES) {
        record("kernel %s: expected at most %u bytes of shared memory, got %llu static and %llu dynamic",
               launch.name, MOST_SHARED_BYTES, static_bytes, launch.dynamic_bytes);
    }
    return !failed;
}

void wait(State waiting, const char* name, Site site) {
    fibers[running]->waits_at = name;
    fibers[running]->site = site;
    state[running] = waiting;
}

}  // namespace

// ---------------------------------------------------------------------------------------------- interface

void fail(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    record("%s, thread (%u, %u, %u): %s", block_text().c_str(), threadIdx.x, threadIdx.y, threadIdx.z, text);
    back_to_scheduler();
    std::abort();  // a failed launch is never resumed
}

int barrier(const char* name, bool predicate, Site site) {
    wait(AT_BARRIER, name, site);
    barrier_predicates += predicate;
    barrier_is_one = barrier_arrived == 0 || (barrier_is_one && site == barrier_site);
    barrier_site = site;
    if (++barrier_arrived == num_threads) {
        if (!barrier_is_one)
            record("%s: different barriers: %s", block_text().c_str(), waiting_text().c_str());
        barrier_result = static_cast<int>(barrier_predicates);
        barrier_arrived = barrier_predicates = 0;
        ++barriers_passed;
        std::memset(state, READY, num_threads);
    }
    back_to_scheduler();
    return barrier_result;
}

void collective(Request& request, bool whole) {
    const unsigned first = running / warpSize * warpSize;
    const unsigned existing = num_threads - first < warpSize ? num_threads - first : warpSize;
    if (!((request.mask >> (running - first)) & 1u))
        fail("%s: expected a mask with this thread's own lane, got 0x%08x", request.name, request.mask);
    if (whole && existing < warpSize)
        fail("%s: expected a whole warp, got one of %u threads", request.name, existing);
    fibers[running]->request = &request;
    wait(AT_COLLECTIVE, request.name, request.site);
    Request* lanes[warpSize] = {};
    bool complete = true;
    for (unsigned lane = 0; lane < existing && complete; ++lane) {
        if (!((request.mask >> lane) & 1u)) continue;
        Request* other = state[first + lane] == AT_COLLECTIVE ? fibers[first + lane]->request : nullptr;
        complete = other && other->execute == request.execute && other->mask == request.mask &&
                   other->site == request.site;
        lanes[lane] = other;
    }
    if (complete) {
        request.execute(lanes);
        for (unsigned lane = 0; lane < existing; ++lane)
            if (lanes[lane]) state[first + lane] = READY;
    }
    back_to_scheduler();
}

bool is_shared(const void* pointer, size_t bytes) {
    const auto* begin = static_cast<const unsigned char*>(pointer);
    return (begin >= dynamic_shared && begin + bytes <= dynamic_shared + launched->dynamic_bytes) ||
           (begin >= launched->static_begin && begin + bytes <= launched->static_end);
}

int launch(const Launch& description) {
    const std::lock_guard<std::mutex> lock(launch_mutex);
    launched = &description;
    num_threads = description.block[0] * description.block[1] * description.block[2];
    failed = false;
    if (!check_limits(description)) return 1;
    prepare_fibers();
    gridDim = {description.grid[0], description.grid[1], description.grid[2]};
    blockDim = {description.block[0], description.block[1], description.block[2]};
    place_threads();
    DynamicShared shared(description);
    const CrashGuard guard(!description.sanitized);
    run_grid(shared);
    if (failed) fibers_prepared = 0;  // they stand in the middle of the kernel: all start anew
    return failed;
}

}  // namespace emulator

extern "C" const char* emulator_error() { return emulator::error; }
