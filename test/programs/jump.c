// jump FILE PROGRAM ARGUMENT...: starts a program whose wall clock is off by the seconds that FILE has, a signed 64-bit number
// that may be changed at any time. Of PROGRAM itself, which has to be a Go program, and not of those that it starts.
//
// A filter of system calls hands clock_gettime(CLOCK_REALTIME) to a second process, which answers in the kernel's place. For
// the program to call the kernel at all, it must not find the kernel's own functions (vDSO), whose address is taken from it as
// it begins.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		_exit(126);
	}
}

// filter asks whoever has the file that it returns.
static int filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_REALTIME, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(*code), code};
	for (int tries = 0; tries < 2; tries++) {
		int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
		if (fd >= 0)
			return fd;
		prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); // who may not filter otherwise
	}
	return -1;
}

// pass sends a file over a socket, or takes one.
static int pass(int socket, int fd)
{
	char byte = 0;
	struct iovec data = {&byte, 1};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {0};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	if (fd < 0) {
		if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == NULL)
			return -1;
		return *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
	}
	control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	*(int *)CMSG_DATA(&control.header) = fd;
	return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

// hide takes the address of the vDSO from a program that is about to begin.
static void hide(pid_t pid)
{
	struct user_regs_struct registers;
	need(ptrace(PTRACE_GETREGS, pid, 0, &registers) == 0, "read registers");
	unsigned long at = registers.rsp;
	long argc = ptrace(PTRACE_PEEKDATA, pid, at, 0);
	at += sizeof(long) * (unsigned long)(argc + 2);
	while (ptrace(PTRACE_PEEKDATA, pid, at, 0) != 0)
		at += sizeof(long);
	for (at += sizeof(long);; at += 2 * sizeof(long)) {
		long type = ptrace(PTRACE_PEEKDATA, pid, at, 0);
		if (type == AT_SYSINFO_EHDR)
			need(ptrace(PTRACE_POKEDATA, pid, at, AT_IGNORE) == 0, "hide the vDSO");
		if (type == AT_NULL)
			return;
	}
}

// answer tells all processes of the filter the time, until they are gone.
static void answer(int listener, const volatile int64_t *offset)
{
	struct seccomp_notif asked;
	for (;;) {
		struct pollfd ready = {.fd = listener, .events = POLLIN};
		if (poll(&ready, 1, -1) < 0 && errno != EINTR)
			return;
		if (ready.revents & POLLHUP)
			return;
		if (!(ready.revents & POLLIN))
			continue;
		asked = (struct seccomp_notif){0};
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
			continue; // who asked is gone
		struct timespec now;
		clock_gettime(CLOCK_REALTIME, &now);
		now.tv_sec += *offset;
		struct iovec from = {&now, sizeof(now)}, to = {(void *)(uintptr_t)asked.data.args[1], sizeof(now)};
		struct seccomp_notif_resp told = {.id = asked.id};
		if (process_vm_writev((pid_t)asked.pid, &from, 1, &to, 1, 0) != sizeof(now))
			told.error = -EFAULT;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &told);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s FILE PROGRAM ARGUMENT...\n", argv[0]);
		return 2;
	}
	int file = open(argv[1], O_RDONLY | O_CLOEXEC), sockets[2];
	need(file >= 0, argv[1]);
	const volatile int64_t *offset = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, file, 0);
	need(offset != MAP_FAILED, "map the file");
	need(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0, "make sockets");
	pid_t program = getpid(), between = fork();
	need(between >= 0, "fork");
	if (between == 0) {
		if (fork() != 0)
			_exit(0);
		int listener = pass(sockets[1], -1);
		need(listener >= 0, "take the filter's file");
		need(ptrace(PTRACE_SEIZE, program, 0, PTRACE_O_TRACEEXEC) == 0, "trace the program");
		need(write(sockets[1], "", 1) == 1, "let the program begin");
		int status, null = open("/dev/null", O_RDWR);
		for (int fd = 0; fd < 3; fd++)
			dup2(null, fd);
		close(sockets[0]);
		close(sockets[1]);
		if (waitpid(program, &status, __WALL) == program && WIFSTOPPED(status)) {
			hide(program);
			ptrace(PTRACE_DETACH, program, 0, 0);
			answer(listener, offset);
		}
		_exit(0);
	}
	waitpid(between, NULL, 0);
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	int listener = filter();
	need(listener >= 0, "filter system calls");
	char byte;
	need(pass(sockets[0], listener) == 0 && read(sockets[0], &byte, 1) == 1, "have the clock answered");
	close(listener);
	execvp(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
