/* Stands before the C library in a broker's process and makes its disk fail or wait.

   PYBROKER_DISK_SHIM names a file of eight integers that the test writes and reads while the
   process runs; disk_shim.py has their order. Only segments (*.log) are meant: what is written
   about them may succeed on a disk that has just lost some of them. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { FAIL_SYNCS, SYNC_DELAY_MS, WRITE_DELAY_MS, SYNCS, FAILED, RETRIED, WRITES, COUNT };
enum { FAILED_MAX = 64 };

static volatile int *control;
static ino_t failed_inodes[FAILED_MAX];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PYBROKER_DISK_SHIM");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, COUNT * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) control = found;
    close(fd);
}

static int is_segment(int fd) {
    char link[64], target[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    return length > 4 && memcmp(target + length - 4, ".log", 4) == 0;
}

static void wait_ms(int ms) {
    struct timespec left = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (ms > 0 && nanosleep(&left, &left) != 0) {
    }
}

static int synced(int fd, const char *name) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat status;
    if (control == NULL || !is_segment(fd) || fstat(fd, &status) != 0) return real(fd);
    __sync_fetch_and_add(&control[SYNCS], 1);
    int failures = control[FAILED];
    for (int number = 0; number < failures && number < FAILED_MAX; number++)
        if (failed_inodes[number] == status.st_ino) __sync_fetch_and_add(&control[RETRIED], 1);
    wait_ms(control[SYNC_DELAY_MS]);
    int left = control[FAIL_SYNCS];
    while (left > 0 && !__sync_bool_compare_and_swap(&control[FAIL_SYNCS], left, left - 1))
        left = control[FAIL_SYNCS];
    if (left <= 0) return real(fd);
    int number = __sync_fetch_and_add(&control[FAILED], 1);
    if (number < FAILED_MAX) failed_inodes[number] = status.st_ino;
    errno = EIO;
    return -1;
}

int fdatasync(int fd) { return synced(fd, "fdatasync"); }

int fsync(int fd) { return synced(fd, "fsync"); }

static ssize_t written(int fd, const void *data, size_t size, off64_t position, const char *name) {
    ssize_t (*real)(int, const void *, size_t, off64_t) =
        (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, name);
    if (control != NULL && is_segment(fd)) {
        __sync_fetch_and_add(&control[WRITES], 1);
        wait_ms(control[WRITE_DELAY_MS]);
    }
    return real(fd, data, size, position);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t position) {
    return written(fd, data, size, position, "pwrite");
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t position) {
    return written(fd, data, size, position, "pwrite64");
}
