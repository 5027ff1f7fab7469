/* The program whose output is captured: says "B", writes N bytes of numbered
   lines of 100 bytes in pieces of 64 KiB that end anywhere, says "D". */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fifo;

static void say(char kind) {
	char m[17];
	snprintf(m, sizeof m, "%c%14d\n", kind, (int)getpid());
	if (write(fifo, m, 16) != 16) _exit(9);
}

int main(int argc, char **argv) {
	static char piece[65536 + 100];
	long total = argc > 1 ? atol(argv[1]) : 0, line = 0;
	size_t held = 0;
	fifo = open(getenv("BENCH_FIFO"), O_WRONLY | O_CLOEXEC);
	if (fifo < 0) return 8;
	say('B');
	while (total > 0 || held > 0) {
		while (held < 65536 && total > 0) {
			char *p = piece + held;
			memset(p, 'x', 99);
			long v = line++;
			for (int i = 15; i >= 0; i--, v /= 10) p[i] = '0' + v % 10;
			p[16] = ' ';
			p[99] = '\n';
			held += 100;
			total -= 100;
		}
		size_t n = held < 65536 ? held : 65536, done = 0;
		while (done < n) {
			ssize_t w = write(1, piece + done, n - done);
			if (w < 0) return 7;
			done += w;
		}
		held -= n;
		memmove(piece, piece + n, held);
	}
	say('D');
	for (;;) pause();
}
