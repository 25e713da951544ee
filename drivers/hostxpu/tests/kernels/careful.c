// Kernels that survive an access that is refused: the worker then raises SIGUSR1 (in tests only).
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static __thread sigjmp_buf refused;

static void on_refusal(int signal) {
    (void)signal;
    siglongjmp(refused, 1);
}

__attribute__((constructor)) static void install(void) { signal(SIGUSR1, on_refusal); }

enum { LOAD, STORE, INCREMENT };

// args: address, operation, value, where the result goes: a descriptor of a process, and an
// offset. The result is two words: 1 if the access went on, and what was read.
void try_access(uint64_t index, uint64_t count, const uint64_t *args) {
    (void)index, (void)count;
    volatile uint64_t result[2] = {0, 0};
    if (!sigsetjmp(refused, 1)) {
        uint64_t *word = (uint64_t *)args[0];
        switch (args[1]) {
        case LOAD: result[1] = *(volatile uint64_t *)word; break;
        case STORE: *(volatile uint64_t *)word = args[2]; break;
        case INCREMENT: __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST); break;
        }
        result[0] = 1;
    }
    char path[64] = "/proc/", *end = path + 6;
    // "/proc/PID/fd/FD", by hand: no allocation between the jump and here.
    uint64_t numbers[2] = {args[3] >> 32, args[3] & 0xffffffff};
    for (int i = 0; i < 2; i++) {
        char digits[20];
        int n = 0;
        do digits[n++] = (char)('0' + numbers[i] % 10), numbers[i] /= 10; while (numbers[i]);
        while (n) *end++ = digits[--n];
        if (i == 0) memcpy(end, "/fd/", 4), end += 4;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint64_t out[2] = {result[0], result[1]};
    if (fd < 0 || pwrite(fd, out, 16, (off_t)args[4]) != 16) _exit(9);
    close(fd);
}
