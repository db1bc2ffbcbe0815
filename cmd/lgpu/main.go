// Command lgpu turns physical GPUs into logical ones. Each file here is one subcommand; what they do is in the packages
// they call. docs/cli.md has the promises, exit statuses and what each option means; docs/json.md has the JSON.
//
// Messages go to standard error as "lgpu: error: …" and "lgpu: hint: …": lower case, no full stop.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	_ "github.com/lgpu/lgpu/internal/contain/early" // this may be a start of a contained program
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
		Short: "Run programs inside logical GPUs, with limits on memory and compute",
		Long: `lgpu runs unmodified CUDA programs inside logical GPUs. A logical GPU (an
lgpu) has part of a device's memory and a share of its compute time, and lgpu
enforces both limits. Without arguments it shows the logical GPUs of this
machine.

Limits form a tree of groups and lgpus. Commands, files and a web page show
and change them. A daemon keeps the tree; lgpu run starts one if none runs.

Environment: LGPU_RUNTIME_DIR names the folder for sockets and state,
LGPU_SOCKET_API the socket of the daemon to talk to. Every command has --help;
lgpu man writes manual pages, lgpu completion prints a shell's completion.`,
		Example: `  lgpu run --memory 8GiB --compute 25 -- python train.py
  lgpu run --sim=2x16GiB,sms=32 --memory 25% -- ./program
  lgpu ps
  lgpu set /team memory.max=40GiB compute.max=50%`,
		Version: thisBuild().String(),
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(commandHint(c, args[0], "lgpu --help lists the commands"), "unknown command %q", args[0])
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		SilenceErrors:         true,
		SilenceUsage:          true,
		CompletionOptions:     cobra.CompletionOptions{HiddenDefaultCmd: true},
		RunE:                  func(c *cobra.Command, _ []string) error { return ps{}.show(c, c.OutOrStdout()) },
	}
	c.SetFlagErrorFunc(optionError)
	c.SetUsageFunc(printUsage)
	cobra.EnableCommandSorting = false // help has the order of docs/cli.md
	add := func(title string, commands ...*cobra.Command) {
		c.AddGroup(&cobra.Group{ID: title, Title: title})
		for _, below := range commands {
			below.GroupID = title
			c.AddCommand(below)
		}
	}
	add("Run programs, and watch", runCommand(), psCommand(), topCommand(), energyCommand(), eventsCommand(), pageCommand())
	add("Limits", showCommand(), setCommand(), createCommand(), rmCommand(), chownCommand(), stopCommand(),
		suspendCommand(), resumeCommand(), migrateCommand())
	add("Checkpoints", checkpointCommand(), restoreCommand(), imageCommand())
	add("This machine", devicesCommand(), doctorCommand(), daemonCommand(), cdiCommand(), conformanceCommand(), simCommand(), shmemCommand())
	add("This program", manCommand(), versionCommand())
	c.SetHelpCommand(helpCommand())
	c.InitDefaultHelpCmd()
	strictCompletion(c)
	complete(c)
	return c
}

// printUsage ends with the example, which is what most people look for. It does not use a template: text/template calls
// methods by name, so the linker would have to keep every method of every type (3 MB).
func printUsage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n", c.UseLine())
	if !c.HasParent() {
		b.WriteString("       lgpu COMMAND\n")
	}
	title := ""
	for i, sub := range c.Commands() {
		if !sub.IsAvailableCommand() {
			continue
		}
		if i == 0 || sub.GroupID != title {
			title = sub.GroupID
			fmt.Fprintf(&b, "\n%s:\n", cmp.Or(title, "Commands"))
		}
		fmt.Fprintf(&b, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
	}
	if c.HasAvailableLocalFlags() {
		flags := c.LocalFlags().FlagUsagesWrapped(80)
		fmt.Fprintf(&b, "\nOptions:\n%s\n", strings.TrimRightFunc(flags, unicode.IsSpace))
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	_, err := io.WriteString(c.OutOrStderr(), b.String())
	return err
}

// noArguments refuses arguments with a line in this program's manner.
func noArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(commandHint(c, args[0], c.CommandPath()+" --help"), "%s: unknown argument %q",
			strings.TrimPrefix(c.CommandPath(), "lgpu "), args[0])
	}
	return nil
}

// atMostOne refuses a second argument.
func atMostOne(c *cobra.Command, args []string) error {
	return noArguments(c, args[min(1, len(args)):])
}

// failed is an error of the machine rather than of the user.
func failed(err error) error { return &exit{status: statusFailed, err: err} }

// say writes text for people, or that it cannot be written.
func say(out io.Writer, text string) error {
	if _, err := io.WriteString(out, text); err != nil {
		return failed(fmt.Errorf("write: %w", err))
	}
	return nil
}

// sayJSON writes v as indented JSON.
func sayJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return failed(fmt.Errorf("write: %w", err))
	}
	return nil
}

// written is failed for what may have gone well.
func written(err error) error {
	if err == nil {
		return nil
	}
	return failed(err)
}
