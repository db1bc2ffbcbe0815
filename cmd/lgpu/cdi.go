package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/daemon/cdi"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/tenant/protocol"
)

func cdiCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cdi COMMAND",
		Short: "Show which logical GPUs containers can have",
		Long: `Show which logical GPUs containers can have. The system's daemon offers each
named lgpu to container runtimes by a specification (Container Device
Interface), so that podman, docker, nerdctl and containerd start a container
inside of it:

  podman run --device lgpu.io/lgpu=team IMAGE python train.py

Nothing in the image has to know of lgpu.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(cdiListCommand(), cdiHookCommand())
	return c
}

func cdiListCommand() *cobra.Command {
	var asJSON bool
	var dirs []string
	c := &cobra.Command{
		Use:   "list [--json]",
		Short: "List the logical GPUs that containers can have",
		Long: `List the logical GPUs that containers can have, as container runtimes read them:
from the specifications in ` + cdi.StaticDir + ` and ` + cdi.DynamicDir + `. No daemon is asked.

Exit status: 0; 1 if a specification cannot be read.`,
		Example: `  lgpu cdi list
  podman run --device lgpu.io/lgpu=team IMAGE nvidia-smi`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			listed, err := cdi.List(dirs...)
			var said error
			if asJSON {
				said = sayJSON(c.OutOrStdout(), offers(listed))
			} else {
				said = say(c.OutOrStdout(), offerTable(listed))
			}
			if err != nil {
				return failed(err)
			}
			return said
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringArrayVar(&dirs, "dir", []string{cdi.StaticDir, cdi.DynamicDir}, "`FOLDER` with specifications; repeat")
	return c
}

// offer is an lgpu that containers can have, as lgpu cdi list --json prints it.
type offer struct {
	Name    string   `json:"name"`    // what a runtime is asked for
	Path    string   `json:"path"`    // in the tree of limits
	Devices []string `json:"devices"` // its device files; none of a software GPU
	File    string   `json:"file"`
}

func offers(listed []cdi.Listed) []offer {
	all := []offer{}
	for _, l := range listed {
		o := offer{Name: cdi.Kind + "=" + l.Name, Path: cdi.Path(l.Name), Devices: []string{}, File: l.File}
		for _, n := range l.Edits.Nodes {
			o.Devices = append(o.Devices, n.Path)
		}
		all = append(all, o)
	}
	return all
}

func offerTable(listed []cdi.Listed) string {
	if len(listed) == 0 {
		return "no lgpu is offered to containers; lgpu create NAME makes one, and the system's daemon offers it\n"
	}
	rows := [][]string{{"DEVICE", "SPECIFICATION"}}
	for _, o := range offers(listed) {
		rows = append(rows, []string{o.Name, o.File})
	}
	return aligned(rows)
}

// hookArguments are the command of the hook that specifications name.
var hookArguments = []string{"cdi", "hook"}

func cdiHookCommand() *cobra.Command {
	return &cobra.Command{
		Use:    hookArguments[1],
		Hidden: true, // for container runtimes alone
		Short:  "Put the library of lgpu into the place of the driver's in a container that is about to start",
		Long: `Put the library of lgpu into the place of the driver's in a container that is
about to start. Container runtimes call this (OCI hook createContainer), with
the container's state on standard input. An image whose programs could not use
the lgpu does not start.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := hook(c.InOrStdin()); err != nil {
				return failed(fmt.Errorf("this container cannot be in an lgpu: %w", err))
			}
			return nil
		},
	}
}

// Bounds in bytes of what a runtime tells the hook.
const (
	maxState  = 1 << 20
	maxConfig = 16 << 20
)

// containerConfig is what the hook reads of a container's config.json (OCI runtime specification).
type containerConfig struct {
	Process struct {
		Env []string `json:"env"`
	} `json:"process"`
	Root struct {
		Path string `json:"path"`
	} `json:"root"`
	Hooks struct {
		CreateContainer []struct {
			Args []string `json:"args"`
		} `json:"createContainer"`
	} `json:"hooks"`
}

// hook prepares the container whose state is read.
func hook(in io.Reader) error {
	bundle, config, err := readContainer(in)
	if err != nil {
		return err
	}
	ours := 0
	for _, h := range config.Hooks.CreateContainer {
		if len(h.Args) == 1+len(hookArguments) && strings.Join(h.Args[1:], " ") == strings.Join(hookArguments, " ") {
			ours++
		}
	}
	if ours > 1 {
		return errors.New("it has several devices lgpu.io/lgpu, and a container can be in one lgpu")
	}
	root := config.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(bundle, root)
	}
	image, err := contain.OpenImage(root)
	if err != nil {
		return err
	}
	defer image.Close()
	if err := image.Furnish(config.Process.Env); err != nil {
		return err
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("enter the container's root: %w", err)
	}
	return greet(filepath.Join(contain.SocketDir, contain.SocketName))
}

// readContainer reads the state of a container, and its configuration.
func readContainer(in io.Reader) (bundle string, config containerConfig, err error) {
	var state struct {
		Bundle string `json:"bundle"`
	}
	if err := json.NewDecoder(io.LimitReader(in, maxState)).Decode(&state); err != nil || !filepath.IsAbs(state.Bundle) {
		return "", config, fmt.Errorf("read the container's state from standard input: %w", errors.Join(err, os.ErrInvalid))
	}
	f, err := os.Open(filepath.Join(state.Bundle, "config.json"))
	if err != nil {
		return "", config, fmt.Errorf("read the container's configuration: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxConfig)).Decode(&config); err != nil {
		return "", config, fmt.Errorf("read the container's configuration: %w", err)
	}
	return state.Bundle, config, nil
}

// greetTime is how long a daemon may take to say whether a container may be in its lgpu.
const greetTime = 10 * time.Second

// greet asks the daemon whether it would let this process's container into the lgpu of a socket.
func greet(socket string) error {
	conn, err := net.DialTimeout("unixpacket", socket, greetTime)
	if err != nil {
		return fmt.Errorf("its daemon does not answer: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(greetTime)); err != nil {
		return err
	}
	m := protocol.Message{Kind: protocol.Hello, Version: protocol.Version, Flags: protocol.FlagAsk}
	if _, err := conn.Write(m.Append(nil)); err != nil {
		return fmt.Errorf("its daemon does not answer: %w", err)
	}
	var data [protocol.Size + protocol.MaxText]byte
	n, err := conn.Read(data[:])
	if err != nil {
		return fmt.Errorf("its daemon does not answer: %w", err)
	}
	answer, text, err := protocol.Parse(data[:n])
	switch {
	case err != nil:
		return fmt.Errorf("its daemon's answer: %w", err)
	case answer.Kind == protocol.Welcome:
		return nil
	case text == "":
		text = unix.Errno(answer.Value).Error()
	}
	return errors.New(text)
}
