// Package cronjob makes a Job at each time of a schedule (CJ-1..19), named by
// the minute, and removes the finished ones beyond the history limits. It wakes
// at the next time that is due.
package cronjob
