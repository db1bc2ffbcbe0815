package image

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Trust says which images Open accepts.
type Trust struct {
	Keys     []ed25519.PublicKey // those signed by one of these; the machine's own is first by custom
	Unsigned bool                // those that nobody has signed, too
	Foreign  bool                // those that others have signed, too
}

// KeyFile is where the key of this machine is for this user: /var/lib/lgpu/image.key for root, else image.key in
// $XDG_STATE_HOME/lgpu, by default ~/.local/state/lgpu. Unlike the runtime folder, it outlives a restart of the machine.
func KeyFile() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/lgpu/image.key", nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "lgpu", "image.key"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the key of images: %w", err)
	}
	return filepath.Join(home, ".local", "state", "lgpu", "image.key"), nil
}

const keyType = "PRIVATE KEY"

// MakeKey reads the key in a file, and makes it where there is none, with mode 0600, and its folder.
func MakeKey(path string) (ed25519.PrivateKey, error) {
	key, err := ReadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	_, fresh, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a key for images: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(fresh)
	if err != nil {
		return nil, fmt.Errorf("make a key for images: %w", err)
	}
	if err := place(path, pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der})); err != nil {
		return nil, fmt.Errorf("make the key %s: %w", path, err)
	}
	return ReadKey(path) // another process may have been quicker
}

// place puts a file there with mode 0600, durably, unless there is one.
func place(path string, text []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(text)
	if err = errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// ReadKey reads a key that MakeKey made. One that others could have read or put there is refused. The error wraps
// fs.ErrNotExist where there is none.
func ReadKey(path string) (ed25519.PrivateKey, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("key of images: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("key %s: it %s", path, notPlain)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("key %s: it belongs to user %d", path, st.Uid)
	case st.Mode&0o077 != 0:
		return nil, fmt.Errorf("key %s: others may use it (mode %#o); if they did not: chmod 600 %s", path, st.Mode&0o777, path)
	}
	text := make([]byte, 4096)
	n, err := f.Read(text)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	block, _ := pem.Decode(text[:n])
	if block == nil || block.Type != keyType {
		return nil, fmt.Errorf("key %s: it is no key; move it away, and the next checkpoint makes one", path)
	}
	any, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", path, err)
	}
	key, ok := any.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key %s: it is not for ed25519", path)
	}
	return key, nil
}

// signed is what is signed: the manifest, behind words that no other thing that the key may sign begins with.
func signed(manifest []byte) []byte { return append([]byte("lgpu image manifest\n"), manifest...) }

const signatureWord = "ed25519"

// sign is the text of the signature of a manifest: a line of three words, with the public key and the signature in base64.
func sign(key ed25519.PrivateKey, manifest []byte) []byte {
	public := key.Public().(ed25519.PublicKey) // that is what it returns
	return fmt.Appendf(nil, "%s %s %s\n", signatureWord, KeyName(public),
		base64.StdEncoding.EncodeToString(ed25519.Sign(key, signed(manifest))))
}

// KeyName is the text of a public key.
func KeyName(key ed25519.PublicKey) string { return base64.StdEncoding.EncodeToString(key) }

// signer returns whose signature of a manifest a text is. ErrSignature, if it is nobody's.
func signer(text, manifest []byte) (ed25519.PublicKey, error) {
	words := strings.Fields(string(text))
	if len(words) != 3 || words[0] != signatureWord {
		return nil, ErrSignature
	}
	public, err := base64.StdEncoding.DecodeString(words[1])
	signature, errs := base64.StdEncoding.DecodeString(words[2])
	if err != nil || errs != nil || len(public) != ed25519.PublicKeySize || !ed25519.Verify(public, signed(manifest), signature) {
		return nil, ErrSignature
	}
	return public, nil
}

// accept says whether an image of a signer may be used; the signer is nil where there is none.
func (t Trust) accept(by ed25519.PublicKey) error {
	if by == nil {
		if t.Unsigned {
			return nil
		}
		return ErrUnsigned
	}
	if t.Foreign || t.own(by) {
		return nil
	}
	return fmt.Errorf("%w, with the key %s", ErrForeign, KeyName(by))
}

// own says whether it is one of the trusted keys.
func (t Trust) own(by ed25519.PublicKey) bool {
	for _, k := range t.Keys {
		if bytes.Equal(k, by) {
			return true
		}
	}
	return false
}
