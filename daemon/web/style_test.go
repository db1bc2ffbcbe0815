package web

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// TestContrast: text can be read (WCAG 2, 4.5 to 1) in both themes, also on the tint behind a state.
func TestContrast(t *testing.T) {
	css, err := os.ReadFile("page/style.css")
	if err != nil {
		t.Fatal(err)
	}
	themes := regexp.MustCompile(`(?s)\{([^{}]*--ground:[^{}]*)\}`).FindAllStringSubmatch(string(css), -1)
	if len(themes) != 3 {
		t.Fatalf("%d sets of colours; one is light, two are dark", len(themes))
	}
	for i, theme := range themes {
		colours := map[string][3]float64{}
		for _, m := range regexp.MustCompile(`--([a-z]+): #([0-9a-f]{3,6});`).FindAllStringSubmatch(theme[1], -1) {
			colours[m[1]] = parseColour(t, m[2])
		}
		for _, text := range []string{"ink", "soft", "faint", "accent", "good", "warn", "bad", "other"} {
			for _, ground := range []string{"ground", "card"} {
				if c := contrast(colours[text], colours[ground]); c < 4.5 {
					t.Errorf("theme %d: %s on %s has a contrast of %.2f", i, text, ground, c)
				}
			}
		}
		for _, state := range []string{"good", "warn", "other"} {
			var tint [3]float64
			for k := range tint {
				tint[k] = .14*colours[state][k] + .86*colours["card"][k]
			}
			if c := contrast(colours[state], tint); c < 4.5 {
				t.Errorf("theme %d: a state in %s has a contrast of %.2f", i, state, c)
			}
		}
	}
}

// parseColour reads three or six hexadecimal digits into red, green and blue of 0 to 1.
func parseColour(t *testing.T, digits string) (c [3]float64) {
	t.Helper()
	for k := range c {
		part := digits[k*len(digits)/3 : (k+1)*len(digits)/3]
		if len(part) == 1 {
			part += part
		}
		v, err := strconv.ParseUint(part, 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c[k] = float64(v) / 255
	}
	return c
}

// contrast is WCAG's ratio of the luminances of two colours.
func contrast(a, b [3]float64) float64 {
	luminance := func(c [3]float64) float64 {
		for k, v := range c {
			if v <= .03928 {
				c[k] = v / 12.92
			} else {
				c[k] = math.Pow((v+.055)/1.055, 2.4)
			}
		}
		return .2126*c[0] + .7152*c[1] + .0722*c[2]
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}
