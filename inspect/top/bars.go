package top

import (
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// eighths are the left parts of a character cell.
var eighths = []rune(" ▏▎▍▌▋▊▉")

// bar splits width cells into a filled part and the rest, to an eighth of a cell. Something above nothing shows, and
// something below all leaves a gap.
func bar(part float64, width int) (filled, rest string) {
	if width <= 0 {
		return "", ""
	}
	n := int(math.Round(clamp(part) * float64(width) * 8))
	if part > 0 {
		n = max(n, 1)
	}
	if part < 1 {
		n = min(n, width*8-1)
	}
	filled = strings.Repeat("█", n/8)
	used := n / 8
	if n%8 > 0 {
		filled += string(eighths[n%8])
		used++
	}
	return filled, strings.Repeat("░", width-used)
}

var levels = []rune("▁▂▃▄▅▆▇█")

// spark draws the newest width values, oldest first and flush right, where full is the top of the scale. What is not
// known, or not yet, is blank.
func spark(values []int, asked uint32, width int) string {
	if width <= 0 {
		return ""
	}
	if len(values) > width {
		values = values[len(values)-width:]
	}
	full := int(asked)
	for _, v := range values {
		full = max(full, v)
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(values)))
	for _, v := range values {
		if v == unmeasured || full == 0 {
			b.WriteByte(' ')
		} else {
			b.WriteRune(levels[v*(len(levels)-1)/full])
		}
	}
	return b.String()
}

// size writes bytes in at most five cells: "0", "512M", "62.1G", "141G".
func size(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d", n)
	}
	v := float64(n)
	for _, unit := range "KMGTPE" {
		v /= 1024
		tenths := math.Round(v * 10)
		switch {
		case tenths < 1000 && math.Mod(tenths, 10) != 0:
			return fmt.Sprintf("%.1f%c", v, unit)
		case v < 1023.5:
			return fmt.Sprintf("%.0f%c", v, unit)
		}
	}
	return "16E"
}

// percent writes a share of hundredths of a percent in at most four cells, without the sign: "0", "24.9", "100", or "-"
// for nil, which is not measured.
func percent(share *uint32) string {
	if share == nil {
		return "-"
	}
	v := float64(*share) / 100
	if v >= 99.95 || *share%100 == 0 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

// watts writes power in at most five cells: "351W", "0.8W"; empty where it is not known.
func watts(milliwatts *uint32) string {
	switch {
	case milliwatts == nil:
		return ""
	case *milliwatts < 9950:
		return fmt.Sprintf("%.1fW", float64(*milliwatts)/1000)
	}
	return fmt.Sprintf("%.0fW", float64(*milliwatts)/1000)
}

// joules writes an energy in at most six cells: "0.8J", "351J", "12.3kJ", "1.2MJ"; empty where it is not known.
func joules(millijoules *uint64) string {
	if millijoules == nil {
		return ""
	}
	v := float64(*millijoules) / 1000
	units := []string{"J", "kJ", "MJ", "GJ", "TJ", "PJ"}
	for v >= 999.5 {
		v, units = v/1000, units[1:]
	}
	if v < 99.95 && (v >= 9.95 && units[0] != "J" || v < 9.95) {
		return fmt.Sprintf("%.1f%s", v, units[0])
	}
	return fmt.Sprintf("%.0f%s", v, units[0])
}

// degrees writes a temperature; empty where it is not known.
func degrees(celsius *int32) string {
	if celsius == nil {
		return ""
	}
	return fmt.Sprintf("%d°C", *celsius)
}

func clamp(part float64) float64 {
	if !(part > 0) { // NaN too
		return 0
	}
	return min(part, 1)
}

// fit makes text exactly width cells wide. What is cut off leaves an ellipsis: at the front, where the end tells more.
func fit(text string, width int, front bool) string {
	if width <= 0 {
		return ""
	}
	n := ansi.StringWidth(text)
	if n > width && front {
		text = ansi.TruncateLeft(text, n-width+1, "…")
	} else if n > width {
		text = ansi.Truncate(text, width, "…")
	}
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// right puts text flush right.
func right(text string, width int) string {
	return strings.Repeat(" ", max(0, width-ansi.StringWidth(text))) + text
}

// clean makes text of others harmless for a terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
