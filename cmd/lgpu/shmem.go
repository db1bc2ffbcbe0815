package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/shmem/survey"
)

func shmemCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "shmem COMMAND",
		Short: "Install lshmem (symmetric memory of GPUs); show what it can use",
		Long: `lshmem is symmetric memory between logical GPUs, with communication from inside
kernels. lgpu run --pes N starts its programs. For a description see
https://github.com/lgpu/lgpu/blob/main/docs/lshmem.md.`,
		Example:               "  lgpu shmem install /usr/local\n  lgpu shmem info",
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(commandHint(c, args[0], "lgpu shmem --help lists the commands"), "shmem: unknown command %q", args[0])
			}
			return usage("lgpu shmem --help", "shmem: a command is missing: install or info")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	c.AddCommand(shmemInstallCommand(), shmemInfoCommand())
	return c
}

func shmemInstallCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install FOLDER",
		Short: "Write the library, its headers and its Python module",
		Long: `Write lshmem to FOLDER, which is created if needed: lib/liblshmem.so; include,
with the headers for host and device code; python/lshmem.py. Existing files are
replaced; programs that use them go on with the old ones.

Exit status: 0; 1 if they cannot be written or this lgpu contains none.`,
		Example:               "  lgpu shmem install $HOME/lshmem\n  nvcc -I $HOME/lshmem/include ring.cu -L $HOME/lshmem/lib -llshmem",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("lgpu shmem install /usr/local", "shmem install: name one folder")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			line := progress.Start(c.ErrOrStderr(), "writing lshmem")
			files, err := assets.InstallShmem(args[0])
			line.Done()
			if err != nil {
				return failed(err)
			}
			for _, f := range files {
				fmt.Fprintln(c.OutOrStdout(), f)
			}
			return nil
		},
	}
}

func shmemInfoCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "info [--json]",
		Short: "Show what lshmem can use on this machine",
		Long: `Show versions and paths, GPUs and which of them map each other's memory, NICs,
the transports that are possible with them, and every setting with its value.
Settings with which no program would start are listed at the end.

Exit status: 0.`,
		Example:               "  lgpu shmem info\n  lgpu run --sim=2x16GiB,sms=4 -- lgpu shmem info --json",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			libs, err := assets.Install()
			if err != nil && !errors.Is(err, assets.ErrNotBuilt) {
				return failed(err)
			}
			var paths survey.Paths
			if libs.Lshmem != "" {
				paths = survey.Paths{Library: filepath.Join(libs.Lshmem, "liblshmem.so"), Headers: filepath.Join(libs.Lshmem, "include"), Python: libs.Lshmem}
			}
			report := survey.Look(version(), paths, os.Environ())
			if asJSON {
				return sayJSON(c.OutOrStdout(), report)
			}
			return written(report.Print(c.OutOrStdout()))
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
