package compact

import (
	"fmt"

	"github.com/offshoot-dev/offshoot/message"
)

// Shorten shortens the text of a tool's result; "|n|" stands for what is left out.
func Shorten(text string) (string, bool) {
	content, ok := shorten([]message.Block{message.Text(text)}, pruneOver, pruneHead, pruneTail, func(runes int) string { return fmt.Sprintf("|%d|", runes) })
	return message.JoinText(content), ok
}
