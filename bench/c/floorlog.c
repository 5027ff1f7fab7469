/* The floor of capture: N programs with a pipe of PIECE bytes each, PIECE bytes read
   at once and written to DIR/I/current. The file is renamed at the last line border
   within MAX bytes. If MAX is within a line, this line is completed first. PIECE is the
   size to which agentinit enlarges a full pipe and what it reads at once
   (grownPipe and pumpSize in supervisor/logs). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (256 << 10)

static long max;

struct log { int in, out, files; long size; char dir[512]; };

static void rotate(struct log *l) {
	char from[600], to[640];
	snprintf(from, sizeof from, "%s/current", l->dir);
	snprintf(to, sizeof to, "%s/%04d", l->dir, l->files++);
	if (l->out >= 0) { close(l->out); rename(from, to); }
	l->out = open(from, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	l->size = 0;
	if (l->out < 0) exit(6);
}

static void put(struct log *l, char *p, size_t n) {
	while (n > 0) {
		ssize_t w = write(l->out, p, n);
		if (w < 0) exit(5);
		p += w; n -= w; l->size += w;
	}
}

static void keep(struct log *l, char *p, size_t n) {
	size_t room = l->size < max ? max - l->size : 0;
	if (n > room) {
		char *nl = memrchr(p, '\n', room);
		if (!nl) nl = memchr(p + room, '\n', n - room);
		if (nl) {
			size_t head = nl + 1 - p;
			put(l, p, head);
			rotate(l);
			p += head; n -= head;
		}
	}
	put(l, p, n);
}

int main(int argc, char **argv) {
	static char buf[PIECE];
	if (argc < 5) return 2;
	int n = atoi(argv[1]), ep = epoll_create1(EPOLL_CLOEXEC);
	max = atol(argv[2]);
	struct log *logs = calloc(n, sizeof *logs);
	for (int i = 0; i < n; i++) {
		int p[2];
		struct log *l = logs + i;
		snprintf(l->dir, sizeof l->dir, "%s/%d", argv[3], i);
		mkdir(argv[3], 0755);
		mkdir(l->dir, 0755);
		l->out = -1;
		rotate(l);
		if (pipe2(p, O_CLOEXEC)) return 7;
		/* Without CAP_SYS_RESOURCE the kernel refuses this beyond a limit for all
		   pipes of the user (pipe(7), pipe-user-pages-soft). The pipe then keeps
		   its size, as in agentinit. */
		fcntl(p[0], F_SETPIPE_SZ, PIECE);
		if (vfork() == 0) {
			dup2(p[1], 1);
			execv(argv[4], argv + 4);
			_exit(127);
		}
		close(p[1]);
		l->in = p[0];
		struct epoll_event e = {.events = EPOLLIN, .data.ptr = l};
		if (epoll_ctl(ep, EPOLL_CTL_ADD, l->in, &e)) return 4;
	}
	for (;;) {
		struct epoll_event e[64];
		int m = epoll_wait(ep, e, 64, -1);
		for (int i = 0; i < m; i++) {
			struct log *l = e[i].data.ptr;
			ssize_t r = read(l->in, buf, sizeof buf);
			if (r <= 0) { close(l->in); continue; }
			keep(l, buf, r);
		}
	}
}
