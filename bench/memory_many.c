// Memory many: so many processes have a context each, until the program that is
// named after them has ended. Its exit status is that program's.
//
//	cc -Itenant/abi/include -o memory_many bench/memory_many.c -lcuda
//	./memory_many 300 lgpu run --memory 2GiB -- ./memory cuModuleLoadData
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lgpu_cuda.h"

#include "device.h"

// stay makes a context with small stacks, says how that went and waits.
static void stay(int say, int end)
{
	CUdevice device;
	CUcontext context;
	char c = 0;
	CUresult r = use_first_device(&device, &context);
	if (r == CUDA_SUCCESS)
		r = cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 128);
	c = r == CUDA_SUCCESS ? 'y' : 'n';
	if (write(say, &c, 1) == 1 && read(end, &c, 1) == 0)
		_exit(0);
	_exit(1);
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[1]) : 0, say[2], end[2], made = 0, status = 1;
	if (n < 1 || pipe(say) != 0 || pipe(end) != 0)
		return 2;
	// A few at a time: each takes host memory, too.
	for (int i = 0; i < n; i++) {
		char c = 'n';
		if (fork() == 0) {
			close(end[1]);
			stay(say[1], end[0]);
		}
		if (i >= 8 && read(say[0], &c, 1) == 1)
			made += c == 'y';
	}
	for (int i = 0; i < (n < 8 ? n : 8); i++) {
		char c = 'n';
		if (read(say[0], &c, 1) == 1)
			made += c == 'y';
	}
	printf("%d of %d processes have a context\n", made, n);
	fflush(stdout);
	pid_t program = fork();
	if (program == 0) {
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	waitpid(program, &status, 0);
	close(end[1]);
	while (wait(NULL) > 0)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
