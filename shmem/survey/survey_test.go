package survey

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	environ := []string{"LSHMEM_BOOTSTRAP=uid:0011", "NVSHMEM_QP_DEPTH=2048", "LSHMEM_QP_DEPHT=64", "LSHMEM_CHUNK=3M"}
	r := Look("v1", Paths{Library: "/l/liblshmem.so", Headers: "/l/include", Python: "/l"}, environ)
	values := map[string]string{}
	for _, s := range r.Settings {
		if s.Help == "" {
			t.Errorf("%s has no help", s.Name)
		}
		values[s.Name] = s.Value
	}
	if got := values["LSHMEM_BOOTSTRAP"]; got != "uid:(secret)" {
		t.Errorf("the bootstrap is shown as %q", got)
	}
	if got := values["LSHMEM_QP_DEPTH"]; got != "2048" {
		t.Errorf("an alias's value is shown as %q", got)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/l/liblshmem.so", "p2p", "software HCA, host", "LSHMEM_HEAP_MAX", "2048 (set)",
		"a chunk of 3 MiB", "did you mean LSHMEM_QP_DEPTH"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in:\n%s", want, &b)
		}
	}
	if strings.Contains(b.String(), "0011") {
		t.Error("a secret is shown")
	}
	data, err := json.Marshal(r)
	if err != nil || bytes.Contains(data, []byte("null")) {
		t.Errorf("JSON: %v\n%s", err, data)
	}
}

// The list in the documentation is the one that the code has.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../../docs/lshmem.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), Markdown()) {
		t.Errorf("docs/lshmem.md does not have the settings as they are; it should be:\n%s", Markdown())
	}
}
