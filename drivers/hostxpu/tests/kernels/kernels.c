// Kernels for the tests: void name(uint64_t index, uint64_t count, const uint64_t *args).
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define KERNEL(name) void name(uint64_t index, uint64_t count, const uint64_t *args)
#define UNUSED (void)index, (void)count, (void)args

// args: words, how many. Adds 1 to each.
KERNEL(add_one) {
    uint64_t *words = (uint64_t *)args[0];
    for (uint64_t i = index; i < args[1]; i += count) words[i]++;
}

// args: words. Word i becomes i + 1.
KERNEL(mark) { UNUSED; ((uint64_t *)args[0])[index] += index + 1; }

// args: 16 words, of which the first is where to copy them.
KERNEL(echo) { UNUSED; memcpy((void *)args[0], args, 128); }

// args: a word, a tag. Order matters.
KERNEL(append) { UNUSED; uint64_t *w = (uint64_t *)args[0]; *w = *w * 31 + args[1]; }

// args: first page, how many pages, where the sum goes. Reads a word of each.
KERNEL(sum_pages) {
    UNUSED;
    uint64_t sum = 0;
    for (uint64_t p = 0; p < args[1]; p++) sum += *(volatile uint64_t *)(args[0] + (p << 21));
    *(uint64_t *)args[2] = sum;
}

// args: first page, how many pages, rounds, seed. Each core counts in a word of its own in each
// page, in a random order.
KERNEL(count_pages) {
    UNUSED;
    uint64_t r = args[3] + index * 7919 + 1;
    for (uint64_t n = 0; n < args[2]; n++) {
        r ^= r << 13, r ^= r >> 7, r ^= r << 17;
        uint64_t page = r % args[1];
        (*(volatile uint64_t *)(args[0] + (page << 21) + 64 * index))++;
    }
}

KERNEL(nothing) { UNUSED; }

// args: where to say that it runs. Ends what its process says to the host, and runs for ever.
KERNEL(hang_up) {
    UNUSED;
    *(volatile uint64_t *)args[0] = 1;
    shutdown(0, SHUT_WR);
    for (;;) sched_yield();
}

// args: words, how many, microseconds. Takes its time, then adds 1 to each.
KERNEL(nap_and_add) {
    usleep((useconds_t)args[2]);
    add_one(index, count, args);
}

// args: an address. Writes there.
KERNEL(poke) { UNUSED; *(volatile uint64_t *)args[0] = 1; }

// args: an address, where the value goes.
KERNEL(peek) { UNUSED; *(uint64_t *)args[1] = *(volatile uint64_t *)args[0]; }

// args: a flag, where to say that it runs. Waits for the flag.
KERNEL(await) {
    UNUSED;
    *(volatile uint64_t *)args[1] = 1;
    while (!*(volatile uint64_t *)args[0]) sched_yield();
}

// args: a flag. Sets it.
KERNEL(set) { UNUSED; *(volatile uint64_t *)args[0] = 1; }

// args: where to say that it runs. Runs for ever.
KERNEL(forever) { UNUSED; *(volatile uint64_t *)args[0] = 1; for (;;) sched_yield(); }

KERNEL(call_abort) { UNUSED; abort(); }
KERNEL(call_exit) { UNUSED; _exit(3); }
KERNEL(call_stop) { UNUSED; raise(SIGSTOP); }
KERNEL(raise_fpe) { UNUSED; raise(SIGFPE); }
KERNEL(jump) { UNUSED; ((void (*)(void))args[0])(); }

static char *volatile sink;
static uint64_t descend(uint64_t n) {
    char frame[4096];
    sink = frame;
    frame[0] = (char)n;
    return descend(n + 1) + (uint64_t)sink[0];
}
KERNEL(overflow) { UNUSED; ((volatile uint64_t *)args)[0] = descend(0); }

// args: a word that is mapped, where the child's end goes. The child writes the word.
KERNEL(fork_and_write) {
    UNUSED;
    *(volatile uint64_t *)args[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile uint64_t *)args[0] = 2;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    *(uint64_t *)args[1] = WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
}

