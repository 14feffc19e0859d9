/* SPDX-License-Identifier: Apache-2.0 */
/* Sets keepalive as C programs do: keepalive HOST PORT WAY */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void set(int fd, int level, int option, int value)
{
	if (setsockopt(fd, level, option, &value, sizeof(value))) {
		printf("setsockopt: %s\n", strerror(errno));
		exit(1);
	}
}

static void keepalive(int fd, const char *way)
{
	if (!strcmp(way, "redis")) { /* idle, a third of it, three */
		set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
		set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 300);
		set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 100);
		set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	} else if (!strcmp(way, "one")) { /* no probe forgiven */
		set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60000);
		set(fd, IPPROTO_TCP, TCP_KEEPCNT, 1);
		set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 60);
		set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
		set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	} else if (!strcmp(way, "off")) {
		set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
		set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
	} else {
		printf("no such way: %s\n", way);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char said[100];
	ssize_t n;

	if (argc != 4 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	to.sin_port = htons(atoi(argv[2]));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		printf("connect: %s\n", strerror(errno));
		return 1;
	}
	keepalive(fd, argv[3]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("set");
	while ((n = read(fd, said, sizeof(said))) > 0)
		fwrite(said, 1, n, stdout);
	puts(n == 0 ? "end" : errno == ETIMEDOUT ? "timed out" : strerror(errno));
	return 0;
}
