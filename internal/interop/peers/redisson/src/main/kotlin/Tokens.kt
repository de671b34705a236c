package watchlock.interop

import org.redisson.api.RFencedLock
import java.io.File
import kotlin.concurrent.thread

/** Takes the fenced lock and gives it back. Returns the token. */
fun takeToken(call: Call): Long {
    val lock = call.client().lock(call.name, true) as RFencedLock
    return lock.lockAndGetToken().also { lock.unlock() }
}

/**
 * Takes `each` tokens on each of `threads` threads and appends them to the file `journal`, a line each, with nothing
 * but the lock to say whose turn it is.
 */
fun noteTokens(call: Call) {
    val lock = call.client().lock(call.name, true) as RFencedLock
    val journal = File(call.text("journal"))
    var failure: Throwable? = null
    List(call.long("threads", 1).toInt()) {
        thread(isDaemon = true) {
            try {
                repeat(call.long("each", 0).toInt()) {
                    val token = lock.lockAndGetToken()
                    try {
                        journal.appendText("$token JVM\n")
                    } finally {
                        lock.unlock()
                    }
                }
            } catch (e: Throwable) {
                synchronized(lock) { failure = failure ?: e }
            }
        }
    }.forEach(Thread::join)
    failure?.let { throw it }
}
