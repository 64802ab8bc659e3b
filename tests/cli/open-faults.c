/* Fault injector for one rank (LD_PRELOAD): acts when a file is opened whose path holds a text.
 *   OPENF_MATCH=text   part of the path; nothing happens without it
 *   OPENF_RANK=n       only in the process whose OMPI_COMM_WORLD_RANK is n
 *   OPENF_COUNT=n      at the n-th such opening (default 1)
 *   OPENF_DO=kill      the process kills itself with SIGKILL
 *           =refuse    open() fails with EACCES, from then on (a superuser cannot be kept out by permission bits)
 *           =memory    from here on the process gets OPENF_EXTRA bytes (default 0) of address space more than it has
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const char *get(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

static void limit_memory(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) abort();
    fclose(file);
    rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)atol(get("OPENF_EXTRA"));
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) abort();
}

/* 1: the call must fail */
static int act(const char *path)
{
    static long seen;
    if (!*get("OPENF_MATCH") || strcmp(get("OPENF_RANK"), get("OMPI_COMM_WORLD_RANK")) != 0) return 0;
    if (!strstr(path, get("OPENF_MATCH"))) return 0;
    long wanted = *get("OPENF_COUNT") ? atol(get("OPENF_COUNT")) : 1;
    if (++seen < wanted) return 0;
    if (strcmp(get("OPENF_DO"), "refuse") == 0) {
        errno = EACCES;
        return 1;
    }
    if (seen > wanted) return 0;
    if (strcmp(get("OPENF_DO"), "kill") == 0) raise(SIGKILL);
    if (strcmp(get("OPENF_DO"), "memory") == 0) limit_memory();
    return 0;
}

#define OPEN(NAME)                                                             \
    int NAME(const char *path, int flags, ...)                                 \
    {                                                                          \
        static int (*real)(const char *, int, ...);                            \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #NAME); \
        va_list list;                                                          \
        va_start(list, flags);                                                 \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
        va_end(list);                                                          \
        return act(path) ? -1 : real(path, flags, mode);                       \
    }

OPEN(open)
OPEN(open64)
