// Makes a server of GCC's compiler proper, which loads this library first (LD_PRELOAD, launch/emulator/compile_server.py).
//
// It compiles a file of two lines: one includes the precompiled header, the other the kernel. By the time it opens the
// kernel's file it has started and has read the header, which takes as long as a small kernel. There it waits. For each
// byte of standard input a copy of the process goes on: it opens the file, compiles what lies there by then, and ends. A
// byte of standard output says how.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr char kKernel[] = "fusegen_kernel.cu";
constexpr char kAssembly[] = "fusegen_kernel.s";

bool is_copy = false;

bool names_kernel(const char* path) {
  const char* slash = strrchr(path, '/');
  return strcmp(slash ? slash + 1 : path, kKernel) == 0;
}

// What the compiler writes goes to standard output, and each copy's into a file. What it says is not wanted: a kernel
// that is rejected is compiled once more, by itself.
void redirect_output() {
  const int assembly = open(kAssembly, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (assembly < 0 || nowhere < 0 || dup2(assembly, STDOUT_FILENO) < 0 || dup2(nowhere, STDERR_FILENO) < 0) _exit(1);
  close(assembly);
  close(nowhere);
}

// What each copy would do anew, of which the kernel is no part: make its code generator ready, which waits for the first
// function, and instantiate what the header's functions call, which waits for the end of the file. Both are the compiler's
// own functions, which it exports for plugins. One that another version does not have is done by the copies.
void prepare() {
  typedef void Initialize();
  typedef void Instantiate(int retries);
  if (void* ready = dlsym(RTLD_DEFAULT, "_Z14initialize_rtlv")) reinterpret_cast<Initialize*>(ready)();
  if (void* instantiate = dlsym(RTLD_DEFAULT, "_Z29instantiate_pending_templatesi")) {
    reinterpret_cast<Instantiate*>(instantiate)(0);
  }
}

// Returns in copies alone. What the compiler has printed so far is in memory, and each copy writes it.
void serve() {
  prepare();
  char request;
  while (read(STDIN_FILENO, &request, 1) == 1) {
    const pid_t copy = fork();
    if (copy == 0) {
      is_copy = true;
      redirect_output();
      return;
    }
    int status = 1;
    while (copy > 0 && waitpid(copy, &status, 0) < 0 && errno == EINTR) continue;
    const char answer = copy > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 'y' : 'n';
    if (write(STDOUT_FILENO, &answer, 1) != 1) break;
  }
  _exit(0);
}

int open_next(const char* path, int flags, mode_t mode) {
  typedef int Open(const char*, int, ...);
  static Open* const original = reinterpret_cast<Open*>(dlsym(RTLD_NEXT, "open64"));
  if (!is_copy && names_kernel(path)) serve();
  return original(path, flags, mode);
}

}  // namespace

#define FUSEGEN_OPEN(name)                                        \
  extern "C" int name(const char* path, int flags, ...) {         \
    va_list rest;                                                 \
    va_start(rest, flags);                                        \
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                 \
    return open_next(path, flags, mode);                          \
  }
FUSEGEN_OPEN(open)
FUSEGEN_OPEN(open64)
