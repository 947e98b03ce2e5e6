// Command nnp prints its effective user. The suite runs it with the set-user-ID
// bit: root shows that no_new_privs was not set.
package main

import (
	"fmt"
	"os"
)

func main() { fmt.Printf("Effective uid: %d\n", os.Geteuid()) }
