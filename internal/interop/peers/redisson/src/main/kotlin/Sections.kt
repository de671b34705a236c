package watchlock.interop

import org.redisson.api.RFencedLock
import java.io.File
import java.util.concurrent.TimeUnit.MILLISECONDS
import kotlin.concurrent.thread

/** What the threads of [sections] did. */
class Shares(
    @JvmField val counts: List<Int>,
    @JvmField val tokens: List<Long>,
    @JvmField val slowest: Long,
)

/**
 * Counts the number in the file `counter` up to `until`, on `threads` threads, with nothing but the lock to protect
 * it. Each section holds for `hold` milliseconds more. Returns the sections of each thread, the tokens in the order of
 * the grants if the lock is fenced, and the longest wait for the lock in nanoseconds.
 */
fun sections(call: Call): Shares {
    val lock = call.client().lock(call.name, call.fenced)
    val counter = File(call.text("counter"))
    val until = call.long("until", 0)
    val hold = call.long("hold", 0)
    val counts = IntArray(call.long("threads", 1).toInt())
    val tokens = mutableListOf<Long>() // the lock protects it
    val slowest = LongArray(counts.size)
    var failure: Throwable? = null

    fun section(i: Int): Boolean {
        val began = System.nanoTime()
        val token = if (lock is RFencedLock) lock.lockAndGetToken() else null.also { lock.lock() }
        try {
            slowest[i] = maxOf(slowest[i], System.nanoTime() - began)
            val n = counter.readText().trim().toLong()
            if (n >= until) return false
            token?.let(tokens::add)
            if (hold > 0) MILLISECONDS.sleep(hold)
            counter.writeText((n + 1).toString())
            counts[i]++
            return true
        } finally {
            lock.unlock()
        }
    }

    counts.indices.map { i ->
        thread(isDaemon = true) {
            try {
                while (section(i)) Unit
            } catch (e: Throwable) {
                synchronized(counts) { failure = failure ?: e }
            }
        }
    }.forEach(Thread::join)
    failure?.let { throw it }
    return Shares(counts.toList(), tokens, slowest.max())
}
