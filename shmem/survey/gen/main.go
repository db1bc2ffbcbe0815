// Command gen writes the list of settings into a document, between its two marks.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/lgpu/lgpu/shmem/survey"
)

const begin, end = "<!-- settings: written by go generate ./shmem/survey -->\n", "<!-- end of settings -->\n"

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: gen DOCUMENT")
	}
	if err := write(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func write(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s: the marks of the settings are missing", path)
	}
	return os.WriteFile(path, []byte(before+begin+survey.Markdown()+end+after), 0o644)
}
