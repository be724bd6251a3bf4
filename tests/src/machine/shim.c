/* Intercepts C library calls of a program: syncs fail, are delayed or do not return, and the wall clock is
 * offset. The controller selects these faults by writing to a file that is mapped here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t syncs_fail;
    int64_t sync_micros;
    int64_t clock_seconds;
    int64_t held; /* syncs that do not return: 0 none, 1 those of the backend file, 2 all */
};

static const volatile struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("QUORATE_TESTS_SHIM");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *place = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (place != MAP_FAILED)
        control = place;
}

static int is_backend(int fd) {
    static const char tail[] = "/snap/db";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    ssize_t tail_length = sizeof tail - 1;
    return length >= tail_length && !memcmp(path + length - tail_length, tail, tail_length);
}

static int disturb(int fd) {
    /* The control file is polled, so that the sync continues when the controller releases it. */
    while (control && (control->held == 2 || (control->held == 1 && is_backend(fd)))) {
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    if (control && control->sync_micros) {
        int64_t micros = control->sync_micros;
        struct timespec time = {micros / 1000000, micros % 1000000 * 1000};
        nanosleep(&time, NULL);
    }
    if (control && control->syncs_fail) {
        errno = EIO;
        return -1;
    }
    return 0;
}

int fsync(int fd) { return disturb(fd) ? -1 : (int)syscall(SYS_fsync, fd); }

int fdatasync(int fd) { return disturb(fd) ? -1 : (int)syscall(SYS_fdatasync, fd); }

static int64_t ahead(void) { return control ? control->clock_seconds : 0; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    int result = (int)syscall(SYS_gettimeofday, time, zone);
    if (result == 0 && time)
        time->tv_sec += ahead();
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place)
        *place = now.tv_sec;
    return now.tv_sec;
}
