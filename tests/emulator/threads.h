// What the emulator itself knows of a thread, and kernels do not see.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "fibers.h"

namespace emulator {

// What a thread waits for, looked at whenever its turn comes.
struct Condition {
    const char* name;
    Site site;
    Condition(const char* name, Site site) : name(name), site(site) {}
    virtual bool holds() = 0;
    virtual std::string detail() const { return ""; }
};

// A cp.async that was issued and has not landed.
struct PendingCopy {
    unsigned char* target;
    unsigned bytes;
    unsigned number;  // among all copies of its thread
    unsigned group;
    unsigned char data[16];
};

// What a store will write when its thread ends.
struct LateWrite {
    unsigned char* target;
    std::vector<unsigned char> data;
    bool operator==(const LateWrite& other) const {
        return target == other.target && data == other.data;
    }
};

// A box on its way from shared to global memory: not read yet.
struct PendingStore {
    MatrixMap map;
    const unsigned char* source;
    int row, column;
    unsigned group;
    std::vector<LateWrite> rows;  // as they are when the store is issued
};

// Registers that belong to products under way. What they held, and come to hold, is kept here; they
// themselves are poisoned.
struct Accumulator {
    float* d;
    std::vector<float> values;
    unsigned num_products;
};

// A relaxed store that other blocks have not seen, and the round at whose end they do.
struct RelaxedStore {
    const void* place;
    size_t bytes;
    unsigned long long round;
};

// What a thread keeps from one call to the next.
struct Thread {
    std::vector<PendingCopy> copies;
    unsigned copies_issued = 0;
    unsigned groups_committed = 0;
    unsigned atomics_since_wait = 0;
    std::vector<PendingStore> stores;
    unsigned store_groups = 0;
    std::vector<LateWrite> late_writes;
    std::vector<RelaxedStore> relaxed;
    std::vector<Product> products;
    std::vector<Accumulator> accumulators;
    unsigned product_groups = 0, products_issued = 0;
    bool gave_registers = false;  // to products, by wgmma_fence

    void begin() {
        copies.clear();
        copies_issued = groups_committed = 0;
        stores.clear();
        late_writes.clear();
        relaxed.clear();
        products.clear();
        accumulators.clear();
        store_groups = product_groups = products_issued = 0;
        gave_registers = false;
    }

    // Lets other blocks see relaxed stores, when the turn of the block ends.
    void end_turn(unsigned long long round);

    // Lets those copies land for which is_due(copy).
    template <class F>
    void land(F is_due) {
        size_t kept = 0;
        for (const auto& copy : copies) {
            if (is_due(copy)) {
                std::memcpy(copy.target, copy.data, copy.bytes);
            } else {
                copies[kept++] = copy;
            }
        }
        copies.resize(kept);
    }
};

extern Thread* current;

// A block's turn ends, in which a thread of it has run or none, or begins; all of those that take
// turns have left, and the whole grid (late_writes.cpp).
void hide_writes(bool has_run);
void show_writes(unsigned block);
void end_blocks();
void end_late_writes();

// Waits until it holds.
void wait_for(Condition& condition);

// Where in shared memory a pointer points, in words.
std::string shared_text(const void* pointer);

}  // namespace emulator
