// Package image keeps what a checkpoint has written of a program on disk: the contents of its device memory, and the files
// that CRIU made of its processes.
//
//	w, err := image.Create("/var/images/train", image.Options{})
//	defer w.Abort() // does nothing after Commit
//	err = w.Copy(ctx, "device/0", size, memory) // any number of these at the same time
//	err = dump(w.Files())                       // a folder for CRIU
//	stats, err := w.Commit(ctx, about, key)
//
//	i, err := image.Open("/var/images/train", image.Trust{Keys: own})
//	defer i.Close()
//	err = i.Load(ctx, map[string]io.WriterAt{"device/0": memory}, nil)
//	err = i.Extract(ctx, folder)
//
// # On disk
//
// An image is a folder: a manifest (JSON), its signature, CRIU's files below files, and below chunks one file for each piece
// of memory that is not zero, named by the BLAKE3 hash of its contents. It is complete in itself, and can be copied or
// removed as any folder can. Images in the same folder share chunks: each chunk is also linked into the folder .lgpu-images
// beside them, where the next image finds it, so that what was written once is linked and not written again. A chunk that
// no image has any more stays there until Collect.
//
// An image is whole or cannot be seen: it is made inside of .lgpu-images, brought to the disk, and then renamed. What a
// killed writer leaves is there until Collect.
//
// # Trust
//
// Who restores an image runs what is in it, with the rights of the program that it was. So the manifest, which has the hash
// of everything else, is signed with a key of the machine; and everything is read as if an attacker had written it.
//
// Reading checks each chunk and file against its hash. What is not as it should be is named by a *Damage.
package image

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// What Create, Open and Commit return, wrapped in an error that names the image.
var (
	ErrExists    = errors.New("it is there already")
	ErrNoImage   = errors.New("it is no image of lgpu: it has no " + manifestName)
	ErrVersion   = errors.New("it has another version")
	ErrUnsigned  = errors.New("it is not signed")
	ErrForeign   = errors.New("it was signed by another machine")
	ErrSignature = errors.New("its signature does not fit its manifest, so one of the two has been changed")
	ErrForeigner = errors.New("it belongs to another user, or others may write to it")
)

// Names of what is in the folder of an image, and of what is in the folder of all images.
const (
	manifestName  = "manifest.json"
	signatureName = "manifest.sig"
	filesName     = "files"
	chunksName    = "chunks"

	storeName = ".lgpu-images"
	newName   = "new" // in it: images that are not complete
)

// Damage is something in an image that is not as the manifest says.
type Damage struct {
	Object string // such as "chunk 5e0b…", "file pages-1.img", "manifest"
	What   string // such as "is missing"
}

func (d *Damage) Error() string { return d.Object + " " + d.What }

// The kinds of damage that no parser has words of its own for.
const (
	missing   = "is missing"
	flipped   = "has other contents than were written"
	notPlain  = "is no plain file"
	unplanned = "is not in the manifest"
)

func damaged(object, what string, args ...any) error {
	return &Damage{Object: object, What: fmt.Sprintf(what, args...)}
}

// lost turns the error of opening an object into the damage that it is, if it is one.
func lost(object string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return damaged(object, missing)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return damaged(object, notPlain)
	}
	return fmt.Errorf("%s: %w", object, err)
}

// at names the image in an error.
func at(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("image %s: %w", path, err)
}

// Bounds of what a manifest may ask for, against memory that a hostile one would take.
const (
	maxManifest = 64 << 20 // bytes
	maxName     = 255      // bytes
	maxDepth    = 4        // folders of a name
	maxStream   = 1 << 50  // bytes
	maxDevices  = 1024
	maxExtra    = 1000 // that Verify lists
)

// checkName says what is wrong with the name of a stream or file: a relative path of few plain words.
func checkName(name string) error {
	words := strings.Split(name, "/")
	switch {
	case name == "":
		return errors.New("an empty name")
	case len(name) > maxName || len(words) > maxDepth:
		return fmt.Errorf("name %.40q…: it is too long", name)
	}
	for _, w := range words {
		if w == "" || w[0] == '.' {
			return fmt.Errorf("name %q: a part is empty or begins with a dot", name)
		}
		for i := range len(w) {
			c := w[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.+=@,", rune(c)) {
				return fmt.Errorf("name %q: only letters, digits and -_.+=@, may be in it", name)
			}
		}
	}
	return nil
}
