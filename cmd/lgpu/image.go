package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/internal/units"
)

func imageCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "image COMMAND",
		Short: "List, verify, compare and clean up images of checkpoints",
		Long: `An image is a folder with what a checkpoint has written of a program. Images in
the same folder share what is the same in them. To remove one, remove its
folder, and then let lgpu image gc free what no other needs.`,
		Example:               "  lgpu image ls /var/images\n  lgpu image verify /var/images/train",
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(commandHint(c, args[0], "lgpu image --help lists the commands"), "image: unknown command %q", args[0])
			}
			return usage("lgpu image --help", "image: a command is missing: ls, verify, diff or gc")
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	c.AddCommand(imageLsCommand(), imageVerifyCommand(), imageDiffCommand(), imageGCCommand(), keeperCommand())
	return c
}

// anyone is to look at images of which nothing is restored.
var anyone = image.Trust{Unsigned: true, Foreign: true}

// Who signed an image.
const (
	signedHere  = "here"
	signedElse  = "elsewhere"
	signedNever = "no"
)

// ownKey trusts the key of this machine, in a file or where it is by default, if there is one.
func ownKey(file string, t image.Trust) (image.Trust, error) {
	name := file
	if name == "" {
		var err error
		if name, err = image.KeyFile(); err != nil {
			return t, failed(err)
		}
	}
	key, err := image.ReadKey(name)
	if err == nil {
		t.Keys = []ed25519.PublicKey{key.Public().(ed25519.PublicKey)} // that is what it returns
	} else if file != "" || !errors.Is(err, fs.ErrNotExist) {
		return t, failed(err)
	}
	return t, nil
}

func signedBy(i *image.Image) string {
	switch {
	case i.Own:
		return signedHere
	case i.Signer != nil:
		return signedElse
	}
	return signedNever
}

// imageLine is an image as ls shows it. docs/images.md describes the JSON.
type imageLine struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	Created time.Time `json:"created"`
	Memory  int64     `json:"memory"`
	Disk    int64     `json:"disk"`
	Own     int64     `json:"own"`
	Signed  string    `json:"signed"`
	Error   string    `json:"error"`
}

func imageLsCommand() *cobra.Command {
	var asJSON bool
	var key string
	c := &cobra.Command{
		Use:   "ls [--key FILE] [--json] [DIR]",
		Short: "List the images in a folder",
		Long: `List the images in DIR, by default the folder where you are; or DIR itself, if
it is an image. MEMORY is that of the program, DISK what the image takes of the
disk, and OWN how much of that it shares with no other image. SIGNED says
whether it was signed here, elsewhere, or not. Nothing is verified.

Exit status: 0; 1 if the folder or an image in it cannot be read.`,
		Example:               "  lgpu image ls\n  lgpu image ls --json /var/images | jq '[.images[].own] | add'",
		DisableFlagsInUseLine: true,
		Args:                  atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			trust, err := ownKey(key, anyone)
			if err != nil {
				return err
			}
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			lines, err := listImages(dir, trust)
			if err != nil {
				return failed(err)
			}
			if err := showImages(c, lines, asJSON); err != nil {
				return err
			}
			for _, l := range lines {
				if l.Error != "" {
					return failed(errors.New(l.Error))
				}
			}
			return nil
		},
	}
	c.Flags().SortFlags = false
	keyFlag(c, &key)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func keyFlag(c *cobra.Command, key *string) {
	c.Flags().StringVar(key, "key", "", "`FILE` with the key of this machine (default: image.key in /var/lib/lgpu, or for users in ~/.local/state/lgpu)")
}

// listImages looks at the images in a folder, or at that which it is.
func listImages(dir string, trust image.Trust) ([]imageLine, error) {
	names := []string{"."}
	if !image.Is(dir) {
		var err error
		if names, err = image.List(dir); err != nil {
			return nil, err
		}
	}
	lines := []imageLine{}
	for _, name := range names {
		path := filepath.Join(dir, name)
		l := imageLine{Name: filepath.Base(path), Path: path}
		if absolute, err := filepath.Abs(path); err == nil {
			l.Name = filepath.Base(absolute)
		}
		i, err := image.Open(path, trust)
		if err == nil {
			var disk image.Disk
			disk, err = i.Disk()
			l.Created, l.Memory, l.Disk, l.Own, l.Signed = i.Created, i.Memory(), disk.Whole, disk.Own, signedBy(i)
			err = errors.Join(err, i.Close())
		}
		if err != nil {
			l.Error = err.Error()
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func showImages(c *cobra.Command, lines []imageLine, asJSON bool) error {
	if asJSON {
		return sayJSON(c.OutOrStdout(), struct {
			Version int         `json:"version"`
			Images  []imageLine `json:"images"`
		}{1, lines})
	}
	if len(lines) == 0 {
		return say(c.OutOrStdout(), "no images\n")
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tCREATED\tMEMORY\tDISK\tOWN\tSIGNED")
	for _, l := range lines {
		if l.Error != "" {
			fmt.Fprintf(t, "%s\tcannot be read\t\t\t\t\n", harmless(l.Name))
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", harmless(l.Name), l.Created.Local().Format(time.DateTime), size(l.Memory), size(l.Disk),
			size(l.Own), l.Signed)
	}
	_ = t.Flush() // to a strings.Builder
	return say(c.OutOrStdout(), b.String())
}

// size is a number of bytes for people.
func size(n int64) string { return units.FormatSize(uint64(max(n, 0))) }

// harmless is a name that a terminal shows as it is.
func harmless(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// verified is what verify found of an image. docs/images.md describes the JSON.
type verified struct {
	Path   string   `json:"path"`
	Whole  bool     `json:"whole"`
	Signed string   `json:"signed"`
	Memory int64    `json:"memory"`
	Damage []string `json:"damage"`
	Error  string   `json:"error"`
}

func imageVerifyCommand() *cobra.Command {
	var asJSON, unsigned, foreign bool
	var key string
	c := &cobra.Command{
		Use:   "verify [options] IMAGE...",
		Short: "Read images whole, and say what is damaged",
		Long: `Read everything in images and compare it with their manifests; and check that
this machine signed them. All damage is listed: what is missing, changed, cut,
or not in the manifest.

Exit status: 0 if all are whole and signed here; 1 otherwise.`,
		Example:               "  lgpu image verify /var/images/train\n  lgpu image verify --allow-foreign /mnt/*",
		DisableFlagsInUseLine: true,
		Args:                  atLeast(1, "IMAGE"),
		RunE: func(c *cobra.Command, args []string) error {
			trust, err := ownKey(key, image.Trust{Unsigned: unsigned, Foreign: foreign})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			var all []verified
			bad := 0
			for _, path := range args {
				v := verifyImage(ctx, c, path, trust)
				if ctx.Err() != nil {
					return &exit{status: 128 + int(unix.SIGINT), err: errors.New("image verify: not ended")}
				}
				if !v.Whole {
					bad++
				}
				if all = append(all, v); !asJSON {
					if err := say(c.OutOrStdout(), v.text()); err != nil {
						return err
					}
				}
			}
			if asJSON {
				if err := sayJSON(c.OutOrStdout(), struct {
					Version int        `json:"version"`
					Images  []verified `json:"images"`
				}{1, all}); err != nil {
					return err
				}
			}
			if bad > 0 {
				return &exit{status: statusFailed, err: fmt.Errorf("%d of %d images are damaged or refused", bad, len(all))}
			}
			return nil
		},
	}
	f := c.Flags()
	f.SortFlags = false
	keyFlag(c, &key)
	f.BoolVar(&unsigned, "allow-unsigned", false, "also accept images that nobody signed")
	f.BoolVar(&foreign, "allow-foreign", false, "also accept images that another machine signed")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// verifyImage reads an image whole.
func verifyImage(ctx context.Context, c *cobra.Command, path string, trust image.Trust) verified {
	v := verified{Path: path, Damage: []string{}}
	i, err := image.Open(path, trust)
	var d *image.Damage
	if errors.As(err, &d) {
		v.Damage = append(v.Damage, d.Error())
		return v
	} else if err != nil {
		v.Error = err.Error()
		return v
	}
	defer i.Close()
	v.Signed, v.Memory = signedBy(i), i.Memory()
	line := progress.Start(c.ErrOrStderr(), "verify "+harmless(path))
	defer line.Done()
	whole := i.Size()
	var done atomic.Int64
	found, err := i.Verify(ctx, func(n int64) {
		now := done.Add(n)
		line.Measure(float64(now)/float64(max(whole, 1)), size(now)+" of "+size(whole), "verify "+harmless(path))
	})
	for _, d := range found {
		v.Damage = append(v.Damage, d.Error())
	}
	if err != nil {
		v.Error = err.Error()
	}
	v.Whole = err == nil && len(found) == 0
	return v
}

// text is a line, and one for each damage.
func (v *verified) text() string {
	var b strings.Builder
	switch path := harmless(v.Path); {
	case v.Whole:
		fmt.Fprintf(&b, "%s: whole, %s of memory, signed: %s\n", path, size(v.Memory), v.Signed)
	case len(v.Damage) > 0:
		fmt.Fprintf(&b, "%s: damaged\n", path)
	}
	for _, d := range v.Damage {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	if v.Error != "" {
		fmt.Fprintln(&b, v.Error)
	}
	return b.String()
}

func imageDiffCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "diff [--json] BEFORE AFTER",
		Short: "Say how much of an image has changed since another one",
		Long: `Compare the memory and files of two images by their manifests. CHANGED is how
much of AFTER is not the same at its place in BEFORE, in whole chunks, and NEW
how much of that is nowhere in BEFORE.

Exit status: 0, whether they differ or not; 1 if one of them cannot be read.`,
		Example:               "  lgpu image diff /var/images/monday /var/images/tuesday",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("lgpu image diff /var/images/monday /var/images/tuesday", "image diff: name two images")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var m [2]*image.Manifest
			for n, path := range args {
				i, err := image.Open(path, anyone)
				if err != nil {
					return failed(err)
				}
				m[n] = &i.Manifest
				if err := i.Close(); err != nil {
					return failed(err)
				}
			}
			changes := image.Diff(m[0], m[1])
			if asJSON {
				return sayJSON(c.OutOrStdout(), struct {
					Version int            `json:"version"`
					Changes []image.Change `json:"changes"`
				}{1, append([]image.Change{}, changes...)})
			}
			return say(c.OutOrStdout(), changeTable(changes))
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func changeTable(changes []image.Change) string {
	if len(changes) == 0 {
		return "no difference\n"
	}
	there := func(n int64) string {
		if n < 0 {
			return "-"
		}
		return size(n)
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tBEFORE\tAFTER\tCHANGED\tNEW")
	for _, c := range changes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", c.Name, there(c.Before), there(c.After), size(c.Changed), size(c.New))
	}
	_ = t.Flush() // to a strings.Builder
	return b.String()
}

func imageGCCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "gc [--json] [DIR]",
		Short: "Remove what no image in a folder needs",
		Long: `Remove from DIR, by default the folder where you are, memory of images that have
been removed, as far as no other image has it, and what interrupted checkpoints
have left. Images, and checkpoints that are under way, are left alone.

Exit status: 0; 1 if the folder cannot be read, or is another user's.`,
		Example:               "  rm -r /var/images/monday && lgpu image gc /var/images",
		DisableFlagsInUseLine: true,
		Args:                  atMostOne,
		RunE: func(c *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = cmp.Or(args[0], dir)
			}
			if image.Is(dir) {
				absolute, err := filepath.Abs(dir)
				if err != nil {
					return failed(err)
				}
				return usage("lgpu image gc "+filepath.Dir(absolute), "image gc %s: it is an image, not a folder of images", dir)
			}
			line := progress.Start(c.ErrOrStderr(), "collect "+harmless(dir))
			done, err := image.Collect(dir)
			line.Done()
			if err != nil {
				return failed(fmt.Errorf("collect %s: %w", dir, err))
			}
			if asJSON {
				return sayJSON(c.OutOrStdout(), struct {
					Version int `json:"version"`
					image.Collected
				}{1, done})
			}
			return say(c.OutOrStdout(), fmt.Sprintf("freed %s: chunks %d, unfinished images %d\n", size(done.Bytes), done.Chunks, done.Images))
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// completeImages completes to folders; which of them are images is seen when they are opened.
func completeImages(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	dir, _ := filepath.Split(typed)
	entries, err := os.ReadDir(cmp.Or(dir, "."))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() && image.Is(filepath.Join(dir, e.Name())) {
			found = append(found, dir+e.Name())
		}
	}
	if len(found) == 0 {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}
