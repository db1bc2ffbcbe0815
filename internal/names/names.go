// Package names says what lgpus, groups and gangs can be called, and which of them are below which.
package names

import (
	"fmt"
	"strings"
)

// Within reports whether the path of a directory is ancestor or one below it. Both begin with a slash, which is the
// root's path, and end without one.
func Within(path, ancestor string) bool {
	return ancestor == "/" || path == ancestor || strings.HasPrefix(path, ancestor+"/")
}

// Check reports why name cannot name an lgpu: names have 1 to 63 letters, digits, dots, dashes and underscores and
// begin with a letter or a digit.
func Check(name string) error {
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("name %q has %d characters; 1 to 63 are possible", name, len(name))
	}
	for i, r := range name {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9'
		if !letter && (i == 0 || r != '.' && r != '-' && r != '_') {
			return fmt.Errorf("name %q: %q is not possible there; names are letters, digits, dots, dashes and underscores",
				name, string(r))
		}
	}
	return nil
}
