package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	defer func(v, c, d string) { buildVersion, buildCommit, buildDate = v, c, d }(buildVersion, buildCommit, buildDate)
	buildVersion, buildCommit, buildDate = "1.2.3", strings.Repeat("0123456789", 4)+"-dirty", "2026-01-02T03:04:05Z"
	b := thisBuild()
	if text := b.String(); !strings.HasPrefix(text, "1.2.3 (commit 012345678901-dirty, 2026-01-02T03:04:05Z, go1.") {
		t.Errorf("%q", text)
	}
	var names map[string]string
	text, err := json.Marshal(b)
	if err == nil {
		err = json.Unmarshal(text, &names)
	}
	if err != nil || names["version"] != "1.2.3" || names["commit"] != buildCommit || names["date"] != buildDate || names["go"] == "" ||
		names["system"] == "" {
		t.Errorf("%s, %v", text, err)
	}
	buildVersion, buildCommit, buildDate = "", "", ""
	if b := thisBuild(); b.Version == "" {
		t.Error("a build by go alone has no version")
	}
}
