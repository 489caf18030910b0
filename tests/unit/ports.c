#include "tests/unit/ports.h"

#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static int is_free(const char *host, int port) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    int six = strchr(host, ':') != NULL, fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM, 0), ok;
    if (fd < 0) return 0;
    if (six)
        ok = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1 && bind(fd, (struct sockaddr *)&v6, sizeof v6) == 0;
    else
        ok = inet_pton(AF_INET, host, &v4.sin_addr) == 1 && bind(fd, (struct sockaddr *)&v4, sizeof v4) == 0;
    (void)close(fd);
    return ok;
}

int ports_free(const char *host) {
    for (int i = 0; i < 100; i++) {
        uint32_t number = 0;
        if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) return 0;
        int port = 12000 + (int)(number % 18000);
        if (is_free(host, port)) return port;
    }
    return 0;
}
