// Runs a grid of emulated threads: fibers on one thread of the CPU, block after block, or cluster
// after cluster.
//
// A thread runs until it waits at a barrier, a warp collective or for the phase of a barrier in
// shared memory (mbarriers.cpp), sleeps, or returns; a warp runs until none of its threads can go
// on, so that it is as far ahead of the others as barriers allow. The order of blocks, of warps,
// and of threads in a warp, is from first to last, or with `reverse` from last to first. When all
// wait and none can go on, or all sleep again and again, the launch fails with a message that says
// who waits where.
//
// The blocks of a cluster take turns, and so do all of a cooperative launch: each runs until none
// of its warps can go on, so that it is as far ahead of the others as they let it. Each has dynamic
// shared memory of its own. Cards that launch a kernel together are groups of its blocks: each has
// a grid and arguments of its own, and all blocks take turns. Static shared memory, of which a library has one copy, those of a
// cluster must not have; that of others changes with the block.
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
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "threads.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// There only where AddressSanitizer is; it must know on which stack the program runs.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                          size_t size);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                           size_t* size);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}

namespace emulator {

Thread* current = nullptr;
unsigned char* dynamic_shared = nullptr;
unsigned long long progress = 0;

namespace {

constexpr unsigned MOST_THREADS = 1024, MOST_CLUSTER = 16;  // of a block, of a cluster
constexpr unsigned MOST_RESIDENT =
    MOST_THREADS * MOST_CLUSTER;  // threads at once: each takes two mappings of memory
constexpr unsigned MOST_STATIC_BYTES = 48 * 1024;
constexpr unsigned MOST_SHARED_BYTES = 227 * 1024;
constexpr size_t STACK_BYTES = 256 * 1024;
constexpr size_t GUARD_BYTES = 4096;
constexpr size_t FENCE_BYTES = 256;
constexpr unsigned CLUSTER_WINDOW = 0x40000000,
                   BLOCK_WINDOW = 1u << 20;  // of addresses in a cluster
constexpr unsigned MOST_IDLE_ROUNDS = 1000;
constexpr unsigned char POISON = 0xff, FENCE = 0xa5;

// -------------------------------------------------------------------------------- context switches

#if defined(__x86_64__)

using Context = void*;  // the stack pointer, above where and with which frame it goes on

// Inline, and without a return: a processor foretells where returns lead from the calls before
// them, which here were another fiber's. Those of a warp mostly wait at the same place. What lies
// below the stack pointer may be in use.
inline void switch_context(Context& from, Context& to) {
    Context *saved = &from, next = to;
    asm volatile(R"(
        leaq -128(%%rsp), %%rsp
        pushq %%rbp
        leaq 0f(%%rip), %%rax
        pushq %%rax
        movq %%rsp, (%0)
        movq %1, %%rsp
        popq %%rax
        jmp *%%rax
    0:  popq %%rbp
        leaq 128(%%rsp), %%rsp
    )"
                 : "+r"(saved), "+r"(next)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}

// Stack tops differ modulo the page size: at equal offsets all stacks would share a few lines of
// the cache.
void prepare(Context& context, unsigned char* stack, unsigned number, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(stack + STACK_BYTES - 64 - 128 * (number % 32));
    *--top = nullptr;  // the return address of entry, which never returns
    *--top = reinterpret_cast<void*>(entry);
    context = top;
}

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

// ----------------------------------------------------------------------------- state of the launch

enum State : unsigned char { READY, AT_BARRIER, AT_COLLECTIVE, AT_CONDITION, LEFT };

struct Fiber {
    Context context;
    unsigned char* stack = nullptr;
    void* fake_stack = nullptr;
    uint3 index{};
    Thread thread;
    const char* waits_at = nullptr;
    Site site{};
    Request* request = nullptr;
    Condition* condition = nullptr;
};

std::mutex launch_mutex;
std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch
State state[MOST_RESIDENT];
unsigned fibers_prepared = 0;
Context scheduler_context;
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;

// A barrier of all threads of a block or a cluster: those who have arrived, and what came of the
// last time.
struct Meeting {
    unsigned arrived = 0, predicates = 0;
    bool is_one = true;
    Site site{};
    int result = 0;
};

struct Block {
    unsigned number = 0, first = 0;  // among those that take turns, its first thread's fiber
    unsigned card = 0;
    uint3 index{};
    unsigned char* dynamic = nullptr;
    std::vector<unsigned char> static_bytes;  // while another block runs
    unsigned num_left = 0;
    bool has_begun = false;
    bool has_run = false;  // since its turn began
    Meeting meeting;
};

const Launch* launched = nullptr;
unsigned num_threads = 0, running = 0;  // of a block; which fiber
std::vector<Block> blocks;  // that take turns: of the cluster or the whole launch, or only one
Block* block = nullptr;     // whose threads run
std::vector<Meeting> cluster_meetings;
unsigned long long barriers_passed = 0, rounds = 0;
bool failed = false;

// The warp that is late: its number in its block, and that of the block among those that take
// turns; -1 for none. Whether it may run.
struct LateWarp {
    int block = -1, warp = -1;
    bool has_turn = false;
};
LateWarp late_warp;
char error[4096] = "";

// ------------------------------------------------------------------------------------------ errors

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

// Not memcpy: AddressSanitizer would take the gaps between the arrays for an error.
void copy_bytes(unsigned char* to, const unsigned char* from, size_t count) {
#if defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
#else
    for (size_t i = 0; i < count; ++i) static_cast<volatile unsigned char*>(to)[i] = from[i];
#endif
}

// A block's turn ends: other blocks see of its writes to watched memory what they must.
void end_turn() {
    for (unsigned t = block->first; t < block->first + num_threads; ++t)
        fibers[t]->thread.end_turn(rounds);
    hide_writes(block->has_run);
    block->has_run = false;
}

void enter(Block& next) {
    if (writes_are_late && block != &next) {
        if (block) end_turn();
        show_writes(next.number);
    }
    const size_t static_bytes = next.static_bytes.size();
    if (block != &next && static_bytes > 0) {
        if (block) copy_bytes(block->static_bytes.data(), launched->static_begin, static_bytes);
        copy_bytes(launched->static_begin, next.static_bytes.data(), static_bytes);
    }
    block = &next;
    blockIdx = next.index;
    dynamic_shared = next.dynamic;
}

// Who of the block waits where, such as "threads 0-31 wait at __syncthreads (softmax.cu:12); thread
// 32 has left the kernel".
std::string waiting_in_block() {
    std::map<std::string, std::vector<unsigned>> places;
    std::vector<unsigned> left;
    for (unsigned t = 0; t < num_threads; ++t) {
        const Fiber& fiber = *fibers[block->first + t];
        const State state_of_thread = state[block->first + t];
        if (state_of_thread == LEFT) {
            left.push_back(t);
        } else if (state_of_thread != READY) {
            places[std::string(fiber.waits_at) + " (" + file_name(fiber.site.file) + ":" +
                   std::to_string(fiber.site.line) + ")" +
                   (state_of_thread == AT_CONDITION ? fiber.condition->detail() : "")]
                .push_back(t);
        }
    }
    std::string text;
    for (const auto& place : places)
        text += (text.empty() ? "" : "; ") + threads_text(place.second) +
                (place.second.size() == 1 ? " waits at " : " wait at ") + place.first;
    if (!left.empty())
        text += (text.empty() ? "" : "; ") + threads_text(left) +
                (left.size() == 1 ? " has" : " have") + " left the kernel";
    return text;
}

// The same for a cluster, blocks of which the same is true together.
std::string waiting_text() {
    if (blocks.size() == 1) return waiting_in_block();
    std::map<std::string, std::vector<unsigned>> texts;
    for (Block& each : blocks) {
        enter(each);
        texts[waiting_in_block()].push_back(each.number);
    }
    std::string text;
    for (const auto& same : texts)
        text += (text.empty() ? "in block" : "; in block") +
                std::string(same.second.size() == 1 ? " " : "s ") + ranges(same.second) +
                (launched->cooperative ? " " : " of the cluster ") + same.first;
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
    return std::string("kernel ") + launched->name + ", block (" + std::to_string(blockIdx.x) +
           ", " + std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) + ")";
}

void record_waiting(const char* mistake, Block& place) {
    const std::string waiting = waiting_text();
    enter(place);
    record("%s: %s: %s", block_text().c_str(), mistake, waiting.c_str());
}

// ------------------------------------------------------------------------------------------ fibers

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

// Stores to a block that has left may meet another block's memory.
void check_nothing_under_way() {
    const unsigned bytes =
        bytes_under_way(block->dynamic, block->dynamic + launched->dynamic_bytes);
    if (bytes > 0)
        fail("the block leaves while %u bytes are on their way to it, for which nobody waits",
             bytes);
}

// The warps of a group of four multiply together.
void check_groups_of_warps() {
    constexpr unsigned GROUP = 4 * warpSize;
    for (unsigned t = 0; t < num_threads / GROUP * GROUP; t += warpSize) {
        const unsigned first = t / GROUP * GROUP;
        const unsigned own = fibers[block->first + t]->thread.products_issued,
                       expected = fibers[block->first + first]->thread.products_issued;
        if (own != expected)
            fail(
                "wgmma: expected as many products of all four warps of a group, got %u of threads "
                "%u-%u and "
                "%u "
                "of threads %u-%u",
                expected, first, first + warpSize - 1, own, t, t + warpSize - 1);
    }
}

void end_thread() {
    end_stores();
    end_products();
    state[running] = LEFT;
    ++progress;
    if (++block->num_left < num_threads) return;
    check_nothing_under_way();
    check_groups_of_warps();
}

// A fiber runs one thread of each block, then waits for the next block.
void run_fiber() {
    enter_fiber();
    while (true) {
        launched->body(launched->parameters[block->card]);
        end_thread();
        back_to_scheduler();
    }
}

void resume(unsigned number) {
    Fiber& fiber = *fibers[number];
    running = number;
    current = &fiber.thread;
    block->has_begun = block->has_run = true;
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

unsigned blocks_at_once() {
    return launched->cooperative ? launched->grid[0] * launched->cards : launched->cluster;
}

void prepare_fibers() {
    for (; fibers_prepared < blocks_at_once() * num_threads; ++fibers_prepared) {
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
    for (unsigned i = 0, t = 0; i < blocks_at_once() * num_threads; ++i, t = i % num_threads)
        fibers[i]->index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                            t / (blockDim.x * blockDim.y)};
}

// ----------------------------------------------------------------------------------- shared memory

// Not memset: AddressSanitizer would take the gaps between the arrays for an error.
void fill(unsigned char* begin, unsigned char* end, unsigned char value) {
#if defined(__x86_64__)
    size_t count = end - begin;
    asm volatile("rep stosb" : "+D"(begin), "+c"(count) : "a"(value) : "memory");
#else
    for (volatile unsigned char* byte = begin; byte < end; ++byte) *byte = value;
#endif
}

// A block's dynamic shared memory, aligned as asked and no better: with AddressSanitizer exactly
// its bytes, without with a fence after them.
class DynamicShared {
  public:
    explicit DynamicShared(const Launch& launch)
        : bytes_(launch.dynamic_bytes), fence_(launch.sanitized ? 0 : FENCE_BYTES) {
        const size_t alignment = launch.shared_alignment;
        if (posix_memalign(&allocated_, 2 * alignment, alignment + bytes_ + fence_) != 0)
            std::abort();
        if (__asan_poison_memory_region) __asan_poison_memory_region(allocated_, alignment);
        memory_ = static_cast<unsigned char*>(allocated_) + alignment;
    }
    DynamicShared(const DynamicShared&) = delete;
    ~DynamicShared() { std::free(allocated_); }
    unsigned char* poisoned() {
        std::memset(memory_, POISON, bytes_);
        std::memset(memory_ + bytes_, FENCE, fence_);
        return memory_;
    }
    bool fence_holds() const {
        for (size_t i = 0; i < fence_; ++i)
            if (memory_[bytes_ + i] != FENCE) return false;
        return true;
    }

  private:
    void* allocated_ = nullptr;
    unsigned char* memory_;
    size_t bytes_, fence_;
};

// ----------------------------------------------------------------------------------------- crashes

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

// While it lives, a crash of device code is an error of the launch. AddressSanitizer reports
// crashes better itself.
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

// ------------------------------------------------------------------------------------------ blocks

// Makes ready the blocks that take turns, from the first one's index on.
void start_blocks(std::deque<DynamicShared>& shared, uint3 first) {
    fill(launched->static_begin, launched->static_end, POISON);
    blocks.assign(blocks_at_once(), Block());
    block = nullptr;
    const size_t static_bytes =
        blocks.size() > 1 ? launched->static_end - launched->static_begin : 0;
    for (unsigned i = 0; i < blocks.size(); ++i) {
        blocks[i].number = i;
        blocks[i].first = i * num_threads;
        blocks[i].card = launched->cards > 1 ? i / launched->grid[0] : 0;
        blocks[i].index = {first.x + i - blocks[i].card * launched->grid[0], first.y, first.z};
        blocks[i].dynamic = shared[i].poisoned();
        blocks[i].static_bytes.assign(static_bytes, POISON);
    }
    cluster_meetings.assign(blocks.size() / launched->cluster, Meeting());
    forget_mbarriers();
    forget_fences();
    for (unsigned i = 0; i < blocks.size() * num_threads; ++i) {
        state[i] = READY;
        fibers[i]->thread.begin();
    }
}

bool can_run(unsigned t) {
    if (state[t] == AT_CONDITION && fibers[t]->condition->holds()) state[t] = READY;
    return state[t] == READY;
}

bool must_wait(unsigned warp) {
    return static_cast<int>(warp) == late_warp.warp &&
           static_cast<int>(block->number) == late_warp.block && !late_warp.has_turn;
}

// Runs one thread after the other, as far as the warp comes before the next barrier of the block
// falls. Whether any of them could run.
bool run_warp(unsigned warp) {
    if (must_wait(warp)) return false;
    const unsigned first = block->first + warp * warpSize,
                   end = std::min(first + warpSize, block->first + num_threads);
    const unsigned long long barriers_before = barriers_passed;
    bool any_ran = false;
    for (bool ran = true; ran && barriers_passed == barriers_before;) {
        ran = false;
        for (unsigned i = first; i < end; ++i) {
            const unsigned t = launched->reverse ? end - 1 - (i - first) : i;
            if (!can_run(t)) continue;
            ran = any_ran = true;
            resume(t);
            if (failed || must_wait(warp)) return true;
        }
    }
    return any_ran;
}

// Lets each warp have its turn. Whether any of them could run.
bool run_warps() {
    const unsigned num_warps = (num_threads + warpSize - 1) / warpSize;
    bool any_ran = false;
    for (unsigned i = 0; i < num_warps && !failed; ++i)
        any_ran |= run_warp(launched->reverse ? num_warps - 1 - i : i);
    return any_ran;
}

// Runs a block until it waits for others or has left. Whether it could run at all.
bool run_block(Block& next) {
    enter(next);
    bool any_ran = false;
    while (!failed && run_warps()) any_ran = true;
    return any_ran;
}

bool all_have_left() {
    return std::all_of(blocks.begin(), blocks.end(),
                       [](const Block& each) { return each.num_left == num_threads; });
}

// Whether it could run.
bool run_late_warp() {
    const unsigned num_warps = (num_threads + warpSize - 1) / warpSize;
    if (late_warp.block < 0 || late_warp.block >= static_cast<int>(blocks.size()) ||
        late_warp.warp >= static_cast<int>(num_warps))
        return false;
    enter(blocks[late_warp.block]);
    late_warp.has_turn = true;
    const bool ran = run_warp(late_warp.warp);
    late_warp.has_turn = false;
    return ran;
}

// One round: the first block that can run always goes before the others, so that these are as late
// as they may be. Whether any could run.
bool run_round() {
    ++rounds;
    const unsigned long long progress_before = progress;
    bool any_ran = false;
    for (size_t i = 0; i < blocks.size() && !failed;) {
        const bool ran = run_block(blocks[launched->reverse ? blocks.size() - 1 - i : i]);
        any_ran |= ran;
        i = ran ? 0 : i + 1;
    }
    if (!failed && progress == progress_before) any_ran |= run_late_warp();
    return any_ran;
}

void run_blocks() {
    for (unsigned idle_rounds = 0; !all_have_left(); ++idle_rounds) {
        const unsigned long long progress_before = progress;
        const bool any_ran = run_round();
        if (failed) return;
        if (progress != progress_before) idle_rounds = 0;
        if (progress != progress_before) continue;
        if (!any_ran || idle_rounds == MOST_IDLE_ROUNDS)
            return record_waiting("deadlock", blocks[0]);
    }
}

void check_fences(const std::deque<DynamicShared>& shared) {
    for (Block& each : blocks) {
        if (failed || shared[each.number].fence_holds()) continue;
        enter(each);
        record("%s: wrote past the end of its %llu bytes of dynamic shared memory",
               block_text().c_str(), launched->dynamic_bytes);
    }
}

void run_grid() {
    std::deque<DynamicShared> shared;
    for (unsigned i = 0; i < blocks_at_once(); ++i) shared.emplace_back(*launched);
    const unsigned long long width = gridDim.x * launched->cards / blocks_at_once(),
                             turns = width * gridDim.y * gridDim.z;
    for (unsigned long long i = 0; i < turns && !failed; ++i) {
        const unsigned long long turn = launched->reverse ? turns - 1 - i : i;
        start_blocks(shared, {static_cast<unsigned>(turn % width * blocks_at_once()),
                              static_cast<unsigned>(turn / width % gridDim.y),
                              static_cast<unsigned>(turn / width / gridDim.y)});
        run_blocks();
        check_fences(shared);
        if (writes_are_late && block) end_turn();
        end_blocks();
    }
    end_late_writes();
    dynamic_shared = nullptr;
}

// Whether the launch keeps the limits of sm_90 and of the kernel. AddressSanitizer enlarges static
// arrays: their size is not checked then.
bool check_limits(const Launch& launch) {
    const auto *grid = launch.grid, *block = launch.block;
    const unsigned long long static_bytes =
        launch.sanitized ? 0 : launch.static_end - launch.static_begin;
    const unsigned long long threads = 1ull * block[0] * block[1] * block[2];
    if (threads < 1 || threads > launch.most_threads || block[2] > 64) {
        record(
            "kernel %s: expected a block of 1 to %u threads, at most 64 of them in z, got (%u, %u, "
            "%u)",
            launch.name, launch.most_threads, block[0], block[1], block[2]);
    } else if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[0] > 0x7fffffffu ||
               grid[1] > 65535 || grid[2] > 65535) {
        record(
            "kernel %s: expected a grid from (1, 1, 1) to (2147483647, 65535, 65535), got (%u, %u, "
            "%u)",
            launch.name, grid[0], grid[1], grid[2]);
    } else if (static_bytes > MOST_STATIC_BYTES) {
        record("kernel %s: expected at most %u bytes of static shared memory, got %llu",
               launch.name, MOST_STATIC_BYTES, static_bytes);
    } else if (static_bytes + launch.dynamic_bytes > MOST_SHARED_BYTES) {
        record(
            "kernel %s: expected at most %u bytes of shared memory, got %llu static and %llu "
            "dynamic",
            launch.name, MOST_SHARED_BYTES, static_bytes, launch.dynamic_bytes);
    } else if (launch.cluster < 1 || launch.cluster > MOST_CLUSTER ||
               (launch.cluster & (launch.cluster - 1)) != 0 || grid[0] % launch.cluster != 0) {
        record(
            "kernel %s: expected clusters of 1, 2, 4, 8 or 16 blocks, and a multiple of as many "
            "along x, got "
            "%u of %u",
            launch.name, launch.cluster, grid[0]);
    } else if (launch.cards > 1 && !launch.cooperative) {
        record("kernel %s: expected a cooperative launch on %u cards", launch.name, launch.cards);
    } else if (launch.cooperative &&
               (launch.cards * grid[0] * threads > MOST_RESIDENT || grid[1] * grid[2] > 1)) {
        record(
            "kernel %s: expected blocks in a line with at most %u threads at once, got (%u, %u, "
            "%u) of %llu",
            launch.name, MOST_RESIDENT, grid[0], grid[1], grid[2], threads);
    } else if (launch.cluster > 1 && launch.static_end > launch.static_begin) {
        record(
            "kernel %s: expected only dynamic shared memory in blocks of a cluster, got %zu static "
            "bytes",
            launch.name, static_cast<size_t>(launch.static_end - launch.static_begin));
    }
    return !failed;
}

void wait(State waiting, const char* name, Site site) {
    fibers[running]->waits_at = name;
    fibers[running]->site = site;
    state[running] = waiting;
}

void wait_until(Condition& condition) {
    fibers[running]->condition = &condition;
    wait(AT_CONDITION, condition.name, condition.site);
    back_to_scheduler();
}

// Waits for `count` fibers from the first one on; how many of their predicates hold.
int meet(Meeting& meeting, unsigned first, unsigned count, const char* name, bool predicate,
         Site site) {
    ++progress;
    wait(AT_BARRIER, name, site);
    meeting.predicates += predicate;
    meeting.is_one = meeting.arrived == 0 || (meeting.is_one && site == meeting.site);
    meeting.site = site;
    if (++meeting.arrived == count) {
        if (!meeting.is_one) record_waiting("different barriers", *block);
        meeting.result = static_cast<int>(meeting.predicates);
        meeting.arrived = meeting.predicates = 0;
        ++barriers_passed;
        std::memset(state + first, READY, count);
    }
    back_to_scheduler();
    return meeting.result;
}

bool is_same(const Request& one, const Request& other) {
    return one.execute == other.execute && one.mask == other.mask && one.site == other.site;
}

// Whether those lanes of a warp wait at a collective; the one whose turn comes last is asked first.
bool all_have_come(unsigned first, unsigned count, unsigned mask) {
    for (unsigned i = 0; i < count; ++i) {
        const unsigned lane = launched->reverse ? i : count - 1 - i;
        if ((mask >> lane) & 1u && state[first + lane] != AT_COLLECTIVE) return false;
    }
    return true;
}

// Executes a collective and lets its lanes go on, if all of them wait at the same one.
void meet_lanes(unsigned first, unsigned count, Request& request) {
    Request* lanes[warpSize] = {};
    for (unsigned lane = 0; lane < count; ++lane) {
        if (!((request.mask >> lane) & 1u)) continue;
        lanes[lane] = fibers[first + lane]->request;
        if (!is_same(*lanes[lane], request)) return;
    }
    request.execute(lanes);
    for (unsigned lane = 0; lane < count; ++lane)
        if (lanes[lane]) state[first + lane] = READY;
}

struct NextRound : Condition {
    unsigned long long since = rounds;
    using Condition::Condition;
    bool holds() override { return rounds != since; }
};

}  // namespace

// --------------------------------------------------------------------------------------- interface

void fail(const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    record("%s, thread (%u, %u, %u): %s", block_text().c_str(), threadIdx.x, threadIdx.y,
           threadIdx.z, text);
    back_to_scheduler();
    std::abort();  // a failed launch is never resumed
}

int barrier(const char* name, bool predicate, Site site) {
    return meet(block->meeting, block->first, num_threads, name, predicate, site);
}

void cluster_barrier(const char* name, Site site) {
    if (writes_are_late) {
        fence();
        see_atomic(nullptr, 0);
    }
    const unsigned cluster = block->number / launched->cluster,
                   count = launched->cluster * num_threads;
    meet(cluster_meetings[cluster], cluster * count, count, name, false, site);
}

void collective(Request& request, bool whole) {
    const unsigned warp = (running - block->first) / warpSize * warpSize,
                   first = block->first + warp;
    const unsigned existing = num_threads - warp < warpSize ? num_threads - warp : warpSize;
    if (!((request.mask >> (running - first)) & 1u))
        fail("%s: expected a mask with this thread's own lane, got 0x%08x", request.name,
             request.mask);
    if (whole && existing < warpSize)
        fail("%s: expected a whole warp, got one of %u threads", request.name, existing);
    fibers[running]->request = &request;
    ++progress;
    wait(AT_COLLECTIVE, request.name, request.site);
    if (all_have_come(first, existing, request.mask)) meet_lanes(first, existing, request);
    back_to_scheduler();
}

// A thread that waits for another in a loop over an atomic would never end: nobody else runs
// meanwhile, unless the loop has a __nanosleep.
void count_atomic() {
    constexpr unsigned MOST = 1u << 20;
    if (++current->atomics_since_wait > MOST)
        fail("more than %u atomic operations without a barrier, as if it spins on another thread",
             MOST);
}

void begin_copy(const char* name, void* shared, const void* global, unsigned bytes, bool valid) {
    check_shared(name, shared, bytes, bytes);
    check_aligned(name, global, bytes);
    PendingCopy copy{static_cast<unsigned char*>(shared),
                     bytes,
                     current->copies_issued++,
                     current->groups_committed,
                     {}};
    if (valid) std::memcpy(copy.data, global, bytes);
    std::memset(shared, 0xff, bytes);
    current->copies.push_back(copy);
}

void commit_copies() { ++current->groups_committed; }

void wait_for_copies(unsigned most_pending) {
    current->land([&](const PendingCopy& copy) {
        return copy.group + most_pending < current->groups_committed;
    });
}

void wait_for(Condition& condition) {
    ++progress;
    wait_until(condition);
}

void yield(const char* name, Site site) {
    NextRound next(name, site);
    wait_until(next);
}

void fall_behind(const char* name, Site site) {
    const bool is_late = static_cast<int>(block->number) == late_warp.block &&
                         static_cast<int>((running - block->first) / warpSize) == late_warp.warp;
    if (!is_late) return;
    late_warp.has_turn = false;  // nor do its other threads go on
    yield(name, site);
}

bool is_shared(const void* pointer, size_t bytes) {
    const auto* begin = static_cast<const unsigned char*>(pointer);
    return (begin >= dynamic_shared && begin + bytes <= dynamic_shared + launched->dynamic_bytes) ||
           (begin >= launched->static_begin && begin + bytes <= launched->static_end);
}

void check_aligned(const char* name, const void* pointer, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0)
        fail("%s: expected an address aligned to %u bytes, got %p", name, bytes, pointer);
}

void check_shared(const char* name, const void* pointer, unsigned alignment, unsigned bytes) {
    check_aligned(name, pointer, alignment);
    if (!is_shared(pointer, bytes))
        fail("%s: expected %u bytes of shared memory, got %p", name, bytes, pointer);
}

unsigned to_shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - dynamic_shared) +
           launched->shared_alignment;
}

unsigned char* at_shared_address(unsigned address) {
    return dynamic_shared + address - launched->shared_alignment;
}

std::string shared_text(const void* pointer) {
    const auto* byte = static_cast<const unsigned char*>(pointer);
    if (byte >= launched->static_begin && byte < launched->static_end)
        return "byte " + std::to_string(byte - launched->static_begin) + " of static shared memory";
    const auto owner = std::find_if(blocks.begin(), blocks.end(), [&](const Block& each) {
        return byte >= each.dynamic && byte < each.dynamic + launched->dynamic_bytes;
    });
    return "byte " + std::to_string(byte - owner->dynamic) + " of dynamic shared memory" +
           (&*owner == block ? ""
                             : " of block " + std::to_string(owner->number % launched->cluster) +
                                   " of the cluster");
}

unsigned rank_in_cluster() { return block->number % launched->cluster; }

unsigned to_cluster_address(const char* name, const void* pointer, unsigned rank) {
    const auto* byte = static_cast<const unsigned char*>(pointer);
    if (rank >= launched->cluster)
        fail("%s: expected a block below %u of the cluster, got %u", name, launched->cluster, rank);
    if (byte < dynamic_shared || byte >= dynamic_shared + launched->dynamic_bytes)
        fail("%s: expected a pointer to dynamic shared memory, got %p", name, pointer);
    return CLUSTER_WINDOW + rank * BLOCK_WINDOW + static_cast<unsigned>(byte - dynamic_shared);
}

unsigned rank_of_address(unsigned address) { return (address - CLUSTER_WINDOW) / BLOCK_WINDOW; }

unsigned char* at_cluster_address(const char* name, unsigned address, unsigned bytes) {
    const unsigned rank = rank_of_address(address), offset = address % BLOCK_WINDOW;
    if (address < CLUSTER_WINDOW || rank >= launched->cluster)
        fail("%s: expected an address that cluster_address gave, got 0x%08x", name, address);
    const unsigned alignment = std::min(bytes, 16u);
    if (offset % alignment != 0)
        fail("%s: expected an address aligned to %u bytes, got byte %u", name, alignment, offset);
    if (offset + bytes > launched->dynamic_bytes)
        fail(
            "%s: expected %u bytes of the %llu of shared memory of block %u of the cluster, got "
            "byte %u",
            name, bytes, launched->dynamic_bytes, rank, offset);
    const Block& other = blocks[block->number - rank_in_cluster() + rank];
    if (!other.has_begun) fail("%s: block %u of the cluster has not begun", name, rank);
    if (other.num_left == num_threads)
        fail("%s: block %u of the cluster has left the kernel", name, rank);
    return other.dynamic + offset;
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
    const CrashGuard guard(!description.sanitized);
    run_grid();
    if (failed) fibers_prepared = 0;  // they stand in the middle of the kernel: all start anew
    return failed;
}

}  // namespace emulator

extern "C" const char* emulator_error() { return emulator::error; }

extern "C" void emulator_be_late(int block, int warp) {
    emulator::late_warp = {block, warp, false};
}
