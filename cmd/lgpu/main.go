// Command lgpu turns physical GPUs into logical ones. Each file here is one subcommand; what they do is in the packages
// they call. docs/cli.md has the promises, exit statuses and what each option means; docs/json.md has the JSON.
//
// Messages go to standard error as "lgpu: error: …" and "lgpu: hint: …": lower case, no full stop.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/spf13/cobra"
)

// Exit statuses beside those of the program that lgpu run starts.
const (
	statusFailed        = 1   // something other than the command line was wrong
	statusUsage         = 2   // the command line asks for what cannot be
	statusNotExecutable = 126 // as shells have it
	statusNotFound      = 127
)

// exit is an error with the status it ends lgpu with. Without an error it prints nothing: the status is the program's.
type exit struct {
	status int
	err    error
	hint   string // a second line: what to do about it
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usage is an error in what the user typed.
func usage(hint, format string, args ...any) error {
	return &exit{status: statusUsage, err: fmt.Errorf(format, args...), hint: hint}
}

// init keeps the main goroutine on the main thread: the kernel ends a child of lgpu run when the thread that started it
// ends (PR_SET_PDEATHSIG), and the main thread lives as long as the process.
func init() { runtime.LockOSThread() }

func main() {
	err := root().ExecuteContext(context.Background())
	if err == nil {
		return
	}
	var e *exit
	if !errors.As(err, &e) {
		// What is not this package's own is cobra's, about the command line.
		e = &exit{status: statusUsage, err: err, hint: "lgpu --help"}
	}
	if e.err != nil {
		fmt.Fprintln(os.Stderr, "lgpu: error:", e.err)
	}
	if e.hint != "" {
		fmt.Fprintln(os.Stderr, "lgpu: hint:", e.hint)
	}
	os.Exit(e.status)
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "lgpu",
		Short: "Run programs inside logical GPUs: shares of a device with limits that hold",
		Long: `lgpu runs unmodified CUDA programs inside logical GPUs: shares of a device
with a memory size and a compute share that hold. Without arguments it shows
the logical GPUs of this machine.

Limits form a tree of groups, which can be shown and changed by commands, as
files, and on a page. A daemon keeps it; lgpu run starts one where none runs.

Environment: LGPU_RUNTIME_DIR names the folder for sockets and state,
LGPU_SOCKET_API the socket of the daemon to talk to. Every command has --help;
lgpu man writes manual pages.`,
		Example: `  lgpu run --memory 8GiB --compute 25 -- python train.py
  lgpu run --sim=2x16GiB,sms=32 --memory 25% -- ./program
  lgpu ps
  lgpu set /team memory.max=40GiB compute.max=50%`,
		Version: version(),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("lgpu --help lists the commands", "unknown command %q", args[0])
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
		CompletionOptions:     cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:                  func(c *cobra.Command, _ []string) error { return ps{}.show(c, c.OutOrStdout()) },
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage(c.CommandPath()+" --help lists the options", "%w", err)
	})
	c.SetUsageTemplate(usageTemplate)
	c.AddCommand(
		runCommand(), psCommand(), topCommand(), showCommand(), setCommand(), createCommand(), rmCommand(), eventsCommand(),
		daemonCommand(), doctorCommand(), conformanceCommand(), simCommand(), shmemCommand(), manCommand())
	return c
}

// usageTemplate ends with the example, which is what most people look for.
const usageTemplate = `Usage: {{.UseLine}}{{if not .HasParent}}
       lgpu COMMAND{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Options:
{{.LocalFlags.FlagUsagesWrapped 80 | trimTrailingWhitespaces}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}
`

// noArguments refuses arguments with a line in this program's manner.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(c.CommandPath()+" --help", "%s: unknown argument %q", c.Name(), args[0])
	}
	return nil
}

// failed is an error of the machine rather than of the user.
func failed(err error) error { return &exit{status: statusFailed, err: err} }

// written is failed for what may have gone well.
func written(err error) error {
	if err == nil {
		return nil
	}
	return failed(err)
}
