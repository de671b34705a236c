// The Kotlin side of docs/porting-from-redisson.md. The guide shows the regions
// between "guide:" and "end" word for word; the Go side is internal/interop/porting.
package porting

import java.util.concurrent.TimeUnit.SECONDS
import java.util.concurrent.atomic.AtomicLong
import kotlin.concurrent.withLock
import kotlinx.coroutines.future.await
import org.redisson.Redisson
import org.redisson.api.* // has NameMapper before Redisson 4
import org.redisson.config.* // has it since

// guide: connect
fun connect(host: String): RedissonClient {
    val config = Config()
    config.useSingleServer().address = "redis://$host"
    return Redisson.create(config)
}
// end

// guide: configure
fun connectAsShop(host: String): RedissonClient {
    val config = Config()
    config.lockWatchdogTimeout = 20_000
    val server = config.useSingleServer()
    server.address = "redis://$host"
    server.nameMapper = object : NameMapper {
        override fun map(name: String) = "shop:$name"
        override fun unmap(name: String) = name.removePrefix("shop:")
    }
    return Redisson.create(config)
}
// end

class OrderBusyException(order: String) : Exception("order $order is busy")

// guide: order
fun ship(redisson: RedissonClient, order: String, job: () -> Unit) {
    val lock = redisson.getLock("lock:order:$order")
    if (!lock.tryLock(3, SECONDS)) throw OrderBusyException(order)
    try {
        job()
    } finally {
        if (lock.isHeldByCurrentThread) lock.unlock()
    }
}
// end

// guide: lock
fun runLocked(lock: RLock, job: () -> Unit) {
    lock.lock()
    try {
        job()
    } finally {
        lock.unlock()
    }
}
// end

// guide: lock-withLock
fun runWithLock(lock: RLock, job: () -> Unit) = lock.withLock { job() }
// end

// guide: lease
fun runForTenSeconds(lock: RLock, job: () -> Unit) {
    lock.lock(10, SECONDS)
    try {
        job()
    } finally {
        lock.unlock()
    }
}
// end

// guide: try-now
fun runIfFree(lock: RLock, job: () -> Unit): Boolean {
    if (!lock.tryLock()) return false
    try {
        job()
        return true
    } finally {
        lock.unlock()
    }
}
// end

// guide: try-lease
fun runSoonAndBriefly(lock: RLock, job: () -> Unit): Boolean {
    if (!lock.tryLock(3, 10, SECONDS)) return false
    try {
        job()
        return true
    } finally {
        lock.unlock()
    }
}
// end

// guide: reentry
fun cancel(redisson: RedissonClient, order: String, pay: () -> Unit) =
    redisson.getLock(order).withLock { refund(redisson, order, pay) }

fun refund(redisson: RedissonClient, order: String, pay: () -> Unit) =
    redisson.getLock(order).withLock { pay() }
// end

// guide: guard
fun sendAll(lock: RLock, parcels: List<String>, send: (String) -> Unit) = lock.withLock {
    for (parcel in parcels) {
        check(lock.isHeldByCurrentThread) { "not sent: $parcel" }
        send(parcel)
    }
}
// end

// guide: info
fun describe(lock: RLock): String =
    "held ${lock.isLocked}, here ${lock.holdCount} times, for ${lock.remainTimeToLive()} ms"
// end

// guide: force
fun breakOpen(lock: RLock): Boolean = lock.forceUnlock()
// end

// guide: fenced
fun write(lock: RFencedLock, store: (Long) -> Unit) {
    val token = lock.lockAndGetToken()
    try {
        store(token)
    } finally {
        lock.unlock()
    }
}
// end

// guide: interrupt
fun waitInterruptibly(lock: RLock, job: () -> Unit) {
    lock.lockInterruptibly() // ends when somebody calls interrupt() on this thread
    try {
        job()
    } finally {
        lock.unlock()
    }
}
// end

// guide: coroutine
val owners = AtomicLong()

suspend fun runAsCoroutine(lock: RLock, job: suspend () -> Unit) {
    val owner = owners.incrementAndGet() // in place of a thread id: coroutines change threads
    lock.lockAsync(owner).toCompletableFuture().await()
    try {
        job()
    } finally {
        lock.unlockAsync(owner).toCompletableFuture().await()
    }
}
// end
