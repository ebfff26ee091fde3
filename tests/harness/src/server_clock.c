/* Preloaded into a server. Adds the number of seconds in the file that SERVER_CLOCK names to its wall clock.
 *
 * The file is mapped, so all processes of a server see a jump at the same moment. Timers and the monotonic clock are not
 * changed. (libfaketime can do more, but timeouts of a PostgreSQL under it never fire.) */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const _Atomic int64_t right = 0;
static const _Atomic int64_t *ahead = &right;

__attribute__((constructor)) static void map_file(void) {
    const char *path = getenv("SERVER_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) {
        ahead = page;
    }
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        at->tv_sec += (time_t)atomic_load(ahead);
    }
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) {
        *at = now.tv_sec;
    }
    return now.tv_sec;
}
